"""The Hopper path without a GPU: launches, memo and records around a kernel that PyTorch plays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from hopwell import attention, cpu, dispatch, execution, reference
from hopwell import compile as compiler
from hopwell.dispatch import record_dispatch
from hopwell.errors import CompileDuringCapture, GradientUnsupported, UnsupportedProblem
from hopwell.hopper import launch
from hopwell.hopper.plan import forward_plan
from hopwell.problem import Problem

PLAN = forward_plan("bfloat16", (64, 64), False)
CAUSAL = forward_plan("bfloat16", (64, 64), True)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def launch_of(q: Tensor, k: Tensor, v: Tensor, num_sms: int = 132) -> launch.Launch:
    return launch.Launch.of(PLAN, Problem.from_tensors(q, k, v), q, k, v, num_sms)


# -- Launch ----------------------------------------------------------------------------------


def test_grid_is_bounded_by_the_device_and_by_the_work() -> None:
    # 3 heads x 2 sequences x ceil(400 / 192) = 18 tiles.
    q, k = half(2, 400, 3, 64), half(2, 77, 1, 64)
    assert launch_of(q, k, k).grid == 18
    assert launch_of(q, k, k, num_sms=5).grid == 5 * PLAN.ctas_per_sm
    assert launch_of(q, k, k).scale == 0.125


@pytest.mark.parametrize(
    "x",
    [
        half(2, 16, 4, 64),
        half(2, 4, 16, 64).transpose(1, 2),
        half(1, 16, 1, 64).expand(2, 16, 4, 64),
    ],
)
def test_addressable_tensors_go_as_they_are(x: Tensor) -> None:
    assert launch.addressable_strides(x) is None


@pytest.mark.parametrize(
    ("shape", "strides", "want"),
    [
        ((1, 16, 4, 64), (7, 256, 64, 1), (4096, 256, 64, 1)),
        ((2, 16, 1, 64), (2048, 128, 3, 1), (2048, 128, 64, 1)),
        ((2, 1, 4, 64), (512, 1, 64, 1), (512, 256, 64, 1)),
        ((1, 1, 1, 8), (1, 1, 1, 1), (8, 8, 8, 1)),
        ((2, 0, 4, 64), (1, 1, 1, 1), (256, 256, 64, 1)),
        ((1, 16, 4, 64), (1 << 39, 256, 64, 1), (4096, 256, 64, 1)),
    ],
)
def test_odd_strides_of_unused_dimensions_are_replaced(
    shape: tuple[int, ...], strides: tuple[int, ...], want: tuple[int, ...]
) -> None:
    storage = half(8192)
    x = storage.as_strided(shape, strides)
    assert launch.addressable_strides(x) == want
    view = x.as_strided(shape, want)
    assert torch.equal(view, x)
    assert view.data_ptr() == x.data_ptr()


def test_run(stand_in: Any) -> None:
    q, k, v = half(1, 30, 4, 64), half(1, 20, 2, 64), half(1, 20, 2, 64)
    q = q.as_strided(q.shape, (7, *q.stride()[1:]))
    out, lse = torch.empty_like(q), torch.empty(1, 4, 30)
    launch.run(CAUSAL, Problem.from_tensors(q, k, v, causal=True), q, k, v, out, lse)
    (call,) = stand_in[CAUSAL].calls
    assert call[0] == (30 * 4 * 64, 256, 64, 1)
    assert call[3:] == (0.125, 132)
    want, want_lse = reference.attention(q, k, v, causal=True)
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)


def test_first_use_during_capture_raises(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CompileDuringCapture, match="before the capture"):
        launch.load(PLAN, 0)
    assert not stand_in
    kernel = object()
    launch.keep(PLAN, 0, kernel)
    assert launch.load(PLAN, 0) == (kernel, False)
    with pytest.raises(CompileDuringCapture):
        launch.load(PLAN, 1)  # another device has not got the code yet


# -- through attention() ---------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_called_and_recorded(stand_in: Any, causal: bool) -> None:
    q, k, v = half(2, 50, 6, 64), half(2, 70, 2, 64), half(2, 70, 2, 48)
    with record_dispatch() as calls:
        results = [attention(q, k, v, causal=causal, return_lse=True) for _ in range(3)]
        attention(q[:1], k[:1], v[:1], causal=causal)  # another shape, the same kernel
    plan = CAUSAL if causal else PLAN
    assert list(stand_in) == [plan]
    want, want_lse = reference.attention(q, k, v, causal=causal)
    for out, lse in results:
        torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    assert [call.cache for call in calls] == ["compiled", "memory", "memory", "memory"]
    assert [call.compile_seconds for call in calls] == [1.5, None, None, None]
    assert {call.backend for call in calls} == {"hopper"}
    assert {call.plan for call in calls} == {plan}
    assert (calls[0].compile_key, calls[0].artifact_hash, calls[0].kernel_symbol) == (
        "key",
        "hash",
        "symbol",
    )


def test_an_unwanted_log_sum_exp_is_not_allocated(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = half(1, 8, 2, 64)
    attention(q, q, q)
    extents: list[tuple[int, ...]] = []
    kernel = type(stand_in[PLAN])
    call = kernel.__call__

    def watched(self: Any, *arguments: Any) -> None:
        extents.append(tuple(arguments[4].shape))
        call(self, *arguments)

    monkeypatch.setattr(kernel, "__call__", watched)
    attention(q, q, q)
    attention(q, q, q, return_lse=True)
    assert extents == [(0, 0, 0), (1, 2, 8)]


@pytest.mark.parametrize(("source", "word"), [("wheel", "wheel"), ("cache", "hit")])
def test_where_the_kernel_came_from(stand_in: Any, source: str, word: str) -> None:
    kernel: Any = compiler.load(PLAN)
    kernel.source = source
    q = half(1, 8, 2, 64)
    with record_dispatch() as calls:
        attention(q, q, q)
    assert calls[0].cache == word
    assert calls[0].compile_seconds is None


@pytest.mark.parametrize("shape", [(0, 8, 2, 64), (2, 0, 2, 64), (2, 8, 0, 64)])
def test_empty_work_launches_and_loads_nothing(stand_in: Any, shape: tuple[int, ...]) -> None:
    q, k = half(*shape), half(shape[0], 8, max(shape[2], 1), 64)
    with record_dispatch() as calls:
        out, lse = attention(q, k, k, return_lse=True)
    assert out.shape == shape
    assert lse.dtype == torch.float32
    assert not stand_in
    assert calls[0].backend == "hopper"
    assert calls[0].kernel_symbol is None


def test_no_keys_are_the_kernels_own_business(stand_in: Any) -> None:
    q, k = half(2, 8, 2, 64), half(2, 0, 2, 64)
    out, lse = attention(q, k, k, return_lse=True)
    assert len(stand_in[PLAN].calls) == 1
    assert not out.any()
    assert (lse == -torch.inf).all()


def test_gradients_raise_at_the_call(stand_in: Any) -> None:
    q, k = half(1, 8, 2, 64), half(1, 8, 2, 64)
    # Prepared before, and with the flags of the op: a gradient must still be noticed.
    attention(q, k, k, return_lse=True)
    attention(q, k, k, return_lse=True, fallback="torch")
    q.requires_grad_()
    with pytest.raises(GradientUnsupported, match="requires grad"):
        attention(q, k, k, return_lse=True)
    with pytest.raises(GradientUnsupported):
        torch.ops.hopwell.attention(q, k, k)
    with torch.no_grad():
        attention(q, k, k)
    assert len(stand_in[PLAN].calls) == 3
    with record_dispatch() as calls:
        attention(q, k, k, fallback="torch").sum().backward()
    assert q.grad is not None
    assert calls[0].backend == "torch"
    assert calls[0].fallback is not None
    assert [row.predicate for row in calls[0].fallback] == ["gradient"]


def test_fallback_is_only_taken_when_allowed(stand_in: Any) -> None:
    q = half(1, 8, 2, 64)
    with pytest.raises(UnsupportedProblem, match="softcap"):
        attention(q, q, q, softcap=2.0)
    with record_dispatch() as calls:
        out = attention(q, q, q, softcap=2.0, fallback="torch")
        attention(q, q, q, fallback="torch")
    assert isinstance(out, Tensor)
    want, _ = reference.attention(q, q, q, softcap=2.0)
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
    assert [call.backend for call in calls] == ["torch", "hopper"]
    assert calls[1].fallback is None


# -- the memo of prepared calls --------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_alignment_is_checked_on_every_call(stand_in: Any, place: int) -> None:
    """A tensor of a known signature, but at an address that the copy engine cannot take."""
    storage = half(8 * 2 * 64 + 8)
    tensors = [half(1, 8, 2, 64) for _ in range(3)]
    for offset, taken in ((0, True), (8, True), (4, False), (0, True), (1, False), (0, True)):
        tensors[place] = storage[offset:].as_strided((1, 8, 2, 64), (1024, 128, 64, 1))
        with record_dispatch() as calls:
            attention(*tensors, fallback="torch")
        names = [row.predicate for row in calls[0].fallback or ()]
        assert names == ([] if taken else [f"{'qkv'[place]}_strides"])
    assert len(stand_in[PLAN].calls) == 4


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_layout_is_never_reused_for_another(stand_in: Any, place: int) -> None:
    """One tensor at a time in other strides; the shapes stay."""
    storage = half(1 << 17)
    shape = (2, 24, 1, 64)
    layouts = [
        ((1536, 64, 64, 1), True),
        ((1536, 64, 3, 1), True),  # odd, of a dimension of size one
        ((0, 64, 64, 1), True),
        ((4096, 128, 64, 1), True),
        ((1536, 68, 64, 1), False),
        ((1540, 64, 64, 1), False),
        ((1536, 64, 64, 1), True),
    ]
    tensors = [half(*shape) for _ in range(3)]
    for strides, taken in layouts:
        tensors[place] = storage.as_strided(shape, strides)
        with record_dispatch() as calls:
            out = attention(*tensors, fallback="torch")
        assert calls[0].backend == ("hopper" if taken else "torch")
        want, _ = reference.attention(*tensors)
        torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
    # What the kernel saw could be addressed, each time.
    for call in stand_in[PLAN].calls:
        assert not any(stride % 8 for stride in call[place][:3])


def test_every_flag_is_part_of_the_signature(stand_in: Any) -> None:
    q = half(1, 8, 2, 64)
    variants: list[dict[str, Any]] = [
        {},
        {"causal": True},
        {"scale": 0.3},
        {"return_lse": True},
        {"deterministic": True},
        {"backend": "hopper"},
        {"fallback": "torch"},
        {"window": (2, 0), "fallback": "torch"},
        {"window": (0, 2), "fallback": "torch"},
        {"softcap": 2.0, "fallback": "torch"},
        {"sink": torch.zeros(2), "fallback": "torch"},
    ]
    for _ in range(2):
        for options in variants:
            with record_dispatch() as calls:
                result = attention(q, q, q, **options)
            out = result[0] if isinstance(result, tuple) else result
            names = ("causal", "scale", "window", "softcap", "sink")
            asked = {name: options[name] for name in names if name in options}
            want, _ = reference.attention(q, q, q, **asked)
            torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
            problem = calls[0].problem
            assert problem.return_lse == options.get("return_lse", False)
            assert problem.deterministic == options.get("deterministic", False)
    assert len(execution._prepared) == len(variants)
    # Equal shapes of another dtype are another signature, too.
    attention(q.half(), q.half(), q.half())
    assert len(execution._prepared) == len(variants) + 1


def test_the_memo_is_bounded(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_PREPARED_LIMIT", 5)
    for length in range(1, 12):
        q = half(1, length, 1, 64)
        attention(q, q, q)
        assert len(execution._prepared) <= 5


class _Calls(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_watches_a_call_sees_it(stand_in: Any) -> None:
    """Modes, subclasses and lazy views go through the dispatcher, prepared or not."""
    q = half(1, 8, 2, 64)
    attention(q, q, q)
    with _Calls() as seen:
        attention(q, q, q)
    assert "hopwell.attention.default" in seen.names

    negative = torch._neg_view(q)
    got = attention(negative, q, q)
    assert isinstance(got, Tensor)
    want, _ = reference.attention(-q, q, q)
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)

    batched = torch.func.vmap(lambda x: attention(x, q, q))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(batched[1], attention(2 * q, q, q))

    class Named(torch.Tensor):
        pass

    assert type(attention(q.as_subclass(Named), q, q)) is Named
    traced = torch.jit.trace(lambda x: attention(x, x, x), (q,), check_trace=False)
    assert "hopwell::attention" in str(traced.graph)


def test_inference_mode_before_and_after(stand_in: Any) -> None:
    """What one mode prepared serves the other, and its results are of the mode they are made in."""
    q = half(1, 8, 2, 64)
    for first in (True, False):
        execution._prepared.clear()
        for inference in (first, not first):
            with torch.inference_mode(inference):
                out, lse = attention(q, q, q, return_lse=True)
            assert out.is_inference() == inference
            assert lse.is_inference() == inference


def test_results_are_fresh_memory(stand_in: Any) -> None:
    q = half(1, 8, 2, 64)
    first, second = (attention(q, q, q, return_lse=True) for _ in range(2))
    addresses = {x.data_ptr() for x in (*first, *second)}
    assert len(addresses) == 4
    assert first[0].untyped_storage().nbytes() == first[0].numel() * 2


def test_threads_share_prepared_calls(stand_in: Any) -> None:
    start = threading.Barrier(4)

    def work(length: int) -> bool:
        q = half(1, length, 2, 64)
        want, _ = reference.attention(q, q, q)
        start.wait()
        return all(
            torch.allclose(attention(q, q, q).double(), want, rtol=1e-2, atol=1e-2)
            for _ in range(30)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (5, 6, 5, 7)))


def test_the_hot_path_skips_the_dispatcher(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    q = half(1, 8, 2, 64)
    attention(q, q, q)
    monkeypatch.setattr(Problem, "from_tensors", None)
    monkeypatch.setattr(dispatch, "choose", None)
    monkeypatch.setattr(cpu, "_SCORES_AT_ONCE", 1 << 24)
    attention(q, q, q)
    assert len(stand_in[PLAN].calls) == 2
