"""Wrong input of any argument: a typed error with expected, actual and consequence."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from hopwell import attention, explain
from hopwell.errors import (
    CompilerMissing,
    GradientUnsupported,
    HopwellError,
    InputError,
    InputTypeError,
    Refusal,
    UnsafeCache,
    UnsupportedProblem,
)
from hopwell.masks import Mask
from hopwell.problem import Problem

#: What a caller without a type checker can write.
untyped_attention: Any = attention

Q = torch.randn(2, 16, 4, 8)
K = torch.randn(2, 12, 2, 8)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([Q[0], Q[1]], layout=torch.jagged)


TENSORS: list[tuple[str, Any, type[HopwellError], str]] = [
    ("q", None, InputTypeError, "torch.Tensor"),
    ("q", [[1.0]], InputTypeError, "list"),
    ("k", K.numpy(), InputTypeError, "ndarray"),
    ("q", Q.to_sparse(), InputTypeError, "sparse_coo"),
    ("v", K.to_mkldnn(), InputTypeError, "mkldnn"),
    ("q", Q.to(torch.complex64), InputTypeError, "complex64"),
    ("q", Q.to(torch.complex64).conj(), InputTypeError, "complex64"),
    ("k", K.int(), InputTypeError, "int32"),
    ("v", K.bool(), InputTypeError, "bool"),
    ("q", Q.to(torch.float8_e4m3fn), InputTypeError, "float8"),
    ("k", K.double(), InputError, "dtype"),
    ("v", K.bfloat16(), InputError, "dtype"),
    ("k", K.to("meta"), InputError, "device"),
    ("q", Q[0], InputError, "shape"),
    ("k", K[None], InputError, "shape"),
    ("q", Q[0, 0, 0, 0], InputError, "shape"),
    ("q", Q[:1], InputError, "batch"),
    ("v", K[:, :5], InputError, "seqlen_k"),
    ("v", K[:, :, :1], InputError, "heads_k"),
    ("q", Q[:, :, :3], InputError, "heads_q=3, heads_k=2"),
    ("q", Q[..., :4], InputError, "head_dim"),
    ("v", K[..., :0], InputError, "head_dim_v"),
    ("q", Q.transpose(1, 3).contiguous().transpose(1, 3), InputError, "contiguous"),
    ("v", K[..., ::2], InputError, "contiguous"),
    ("sink", [0.0] * 4, InputTypeError, "list"),
    ("sink", 0.0, InputTypeError, "float"),
    ("sink", torch.zeros(4, dtype=torch.int64), InputTypeError, "int64"),
    ("sink", torch.zeros(3), InputError, "per query head"),
    ("sink", torch.zeros(4, 1), InputError, "heads_q"),
    ("sink", torch.zeros(()), InputError, "heads_q"),
    ("sink", torch.zeros(4, device="meta"), InputError, "device"),
    ("sink", torch.zeros(4).to_sparse(), InputTypeError, "sparse"),
]

OPTIONS: list[tuple[str, Any, type[HopwellError], str]] = [
    *[(name, 1, InputTypeError, "bool") for name in ("causal", "return_lse", "deterministic")],
    *[(name, [], InputTypeError, "bool") for name in ("causal", "return_lse", "deterministic")],
    ("causal", None, InputTypeError, "bool"),
    ("causal", torch.tensor(True), InputTypeError, "bool"),
    ("window", 3, InputTypeError, "left, right"),
    ("window", "ab", InputTypeError, "left, right"),
    ("window", torch.tensor([1, 2]), InputTypeError, "left, right"),
    ("window", (1,), InputError, "two bounds"),
    ("window", (1, 2, 3), InputError, "two bounds"),
    ("window", (-1, 0), InputError, "at least 0 (None is unbounded)"),
    ("window", (None, -1), InputError, "window right"),
    ("window", (True, 0), InputTypeError, "bool"),
    ("window", (0, 1.0), InputTypeError, "float"),
    ("window", (1 << 70, 0), InputError, "64-bit"),
    *[
        (name, value, kind, name)
        for name in ("scale", "softcap")
        for value, kind in [
            (0, InputError),
            (0.0, InputError),
            (-1.0, InputError),
            (float("nan"), InputError),
            (float("inf"), InputError),
            (1e39, InputError),
            (2.1e38, InputError),  # float32 holds it, but not its product with log2(e)
            (1e-38, InputError),  # 0 where subnormal numbers are flushed
            (1e-50, InputError),
            (10**400, InputError),
            (True, InputTypeError),
            ("1", InputTypeError),
            ([1.0], InputTypeError),
            (1j, InputTypeError),
            (torch.tensor(1.0), InputTypeError),
        ]
    ],
    ("backend", "cuda", InputError, "auto, hopper, cpu"),
    ("backend", None, InputTypeError, "backend"),
    ("backend", ["cpu"], InputTypeError, "backend"),
    ("fallback", "cpu", InputError, "error, torch"),
    ("fallback", True, InputTypeError, "fallback"),
]


@pytest.mark.parametrize(("name", "value", "kind", "words"), TENSORS + OPTIONS)
@pytest.mark.parametrize("call", [attention, explain])
def test_wrong_argument(
    call: Any, name: str, value: Any, kind: type[HopwellError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        call(**{"q": Q, "k": K, "v": K, name: value})
    error = caught.value
    assert words in str(error)
    assert f"expected {error.expected}, got {error.actual}" in str(error)
    assert "Nothing was" in error.consequence
    # Code that knows only the built-in classes catches it too.
    assert isinstance(error, TypeError if kind is InputTypeError else ValueError)


@pytest.mark.parametrize("name", ["causal", "return_lse", "deterministic"])
def test_what_equals_a_valid_flag_is_no_flag(name: str) -> None:
    """1 == True, also as the key of a call that was prepared before."""
    untyped_attention(Q, K, K, **{name: True})
    for wrong in (1, 1.0):
        with pytest.raises(InputTypeError):
            untyped_attention(Q, K, K, **{name: wrong})
    attention(Q, K, K, scale=1.0)
    with pytest.raises(InputTypeError):
        attention(Q, K, K, scale=True)


def test_whole_calls() -> None:
    meta = Q.to("meta")
    with pytest.raises(InputError, match="holds data"):
        attention(meta, meta, meta)
    with pytest.raises(InputTypeError, match="nested"):
        attention(nested(), nested(), nested())
    for shape in ((2, 16, 4, 0), (0, 0, 0, 0)):
        with pytest.raises(InputError, match="head_dim"):
            attention(*[torch.randn(shape)] * 3)
    with pytest.raises(InputError, match="heads_k=0"):
        attention(Q, K[:, :, :0], K[:, :, :0])
    with pytest.raises(TypeError):
        untyped_attention(Q, K)
    with pytest.raises(TypeError):
        untyped_attention(Q, K, K, dropout=0.1)


def test_a_refusal_names_every_predicate() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        attention(Q, K, K, softcap=3.0, window=(4, 0), sink=torch.zeros(4), backend="hopper")
    names = {row.predicate for row in caught.value.refusals["hopper"]}
    assert names == {"device", "arch", "dtype", "mask", "softcap", "sink"}
    for name in names:
        assert name in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize(
    "error",
    [
        InputError("what", expected=1, actual=2, consequence="None."),
        GradientUnsupported("what", expected="a", actual="b", consequence="c"),
        UnsupportedProblem({"cpu": [Refusal("device", "cpu", "cuda")]}),
        UnsafeCache("what", expected=1, actual=2, consequence="None."),
        CompilerMissing("what", expected=1, actual=2, consequence="None."),
    ],
)
def test_errors_survive_a_process_pool(error: HopwellError) -> None:
    vars(error)["note"] = "batch 7"
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", "1"),
        ("batch", 1.0),
        ("heads_q", -4),
        ("heads_q", "4"),
        ("heads_q", 4.0),
        ("heads_k", -4),
        ("heads_k", True),
        ("scale", None),
        ("dtype", ["bfloat16"]),
        ("device", None),
        ("arch", 90),
        ("k_strides", 16),
        ("mask", (None, 0)),
        ("mask", Mask(-1, None)),
        ("mask", Mask(None, 1.5)),  # type: ignore[arg-type]
        ("mask", Mask("1", None)),  # type: ignore[arg-type]
        ("sink", 1),
        ("needs_grad", None),
        ("return_lse", []),
    ],
)
def test_a_problem_that_cannot_be_meant(name: str, value: Any) -> None:
    """A problem that is written down is checked as one that comes from tensors."""
    sizes = dict(batch=1, seqlen_q=4, seqlen_k=4, heads_q=4, heads_k=2, head_dim=8, head_dim_v=8)
    right = {**sizes, "dtype": "bfloat16", "device": "cuda", "arch": "sm_90", "scale": 1.0}
    with pytest.raises(
        HopwellError,
        match="window" if name == "mask" and isinstance(value, Mask) else name.split("_")[0],
    ):
        Problem(**{**right, name: value})


def test_the_op_checks_as_the_function_does() -> None:
    op = torch.ops.hopwell.attention
    with pytest.raises(InputError, match="window left"):
        op(Q, K, K, window_left=-1)
    with pytest.raises(InputError, match="scale"):
        op(Q, K, K, scale=-1.0)
    with pytest.raises(InputError, match="heads_k"):
        op(Q, K, K[:, :, :1])
    with pytest.raises(InputError, match="backend"):
        op(Q, K, K, backend="gpu")
