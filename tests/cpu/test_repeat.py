"""A call that repeats the last one skips every check; whatever else changed must be noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hopwell import api, attention, execution, record_dispatch, reference
from hopwell.errors import GradientUnsupported, InputError, InputTypeError

SHAPE = (1, 24, 2, 64)


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def three(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return half(*shape), half(*shape), half(*shape)


class Named(Tensor):
    pass


@pytest.fixture
def repeated(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call from now on was a repetition; q, k and v of SHAPE have been seen."""
    tensors = three(*SHAPE)
    for _ in range(2):  # the first loads the kernel, the second is remembered
        attention(*tensors)
        attention(*tensors, return_lse=True)
    found: list[bool] = []
    repeat = execution.repeat

    def watched(*arguments: Any) -> Any:
        result = repeat(*arguments)
        found.append(result is not None)
        return result

    monkeypatch.setattr(api, "repeat", watched)
    return found


def expect(got: Any, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    want, _ = reference.attention(q, k, v, **options)
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)


def test_equal_calls_are_repetitions(repeated: list[bool]) -> None:
    for _ in range(2):
        q, k, v = three(*SHAPE)
        expect(attention(q, k, v), q, k, v)
        out, lse = attention(q, k, v, return_lse=True)
        expect(out, q, k, v)
        _, want = reference.attention(q, k, v)
        torch.testing.assert_close(lse.double(), want, rtol=1e-5, atol=1e-5)
    assert repeated == [True] * 4


def test_results_are_fresh_memory(repeated: list[bool]) -> None:
    tensors = three(*SHAPE)
    results = [x for _ in range(3) for x in attention(*tensors, return_lse=True)]
    assert len({x.data_ptr() for x in results}) == 6
    assert repeated == [True] * 3


def test_signatures_take_turns(repeated: list[bool]) -> None:
    """The last one only: the others are known, and right, but not at once."""
    short, long = three(1, 5, 2, 64), three(*SHAPE)
    for tensors in (short, short, short, long, long, short):
        expect(attention(*tensors), *tensors)
    assert repeated == [False, False, True, False, True, False]


CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "length": lambda x: x[:, :7],
    "strides": lambda x: torch.stack([x, x])[0].transpose(1, 2).contiguous().transpose(1, 2),
    "dtype": lambda x: x.half(),
    "negation": torch._neg_view,
    "address": lambda x: half(x.numel() + 4)[4:].view(x.shape).copy_(x),
    "subclass": lambda x: x.as_subclass(Named),
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("places", [(0, 1, 2), (0,), (1, 2)])
def test_another_tensor_is_no_repetition(
    repeated: list[bool], change: str, places: tuple[int, ...]
) -> None:
    tensors = [half(*SHAPE) for _ in range(3)]
    if change == "dtype" and len(places) < 3:
        tensors[0] = CHANGED[change](tensors[0])
        with pytest.raises(InputError, match="one dtype"):
            attention(*tensors)
        assert repeated == [False]
        return
    for place in places:
        tensors[place] = CHANGED[change](tensors[place])
    expect(attention(*tensors, fallback="torch"), *tensors)
    expect(attention(*tensors, fallback="error" if change != "address" else "torch"), *tensors)
    assert repeated == [False, False]


def test_wrong_arguments_are_still_named(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    wrong: tuple[Any, ...] = (None, 1, [q], q.double(), q.to("meta"), q.to_sparse())
    for bad in wrong:
        with pytest.raises((InputError, InputTypeError)):
            attention(bad, k, v)
        with pytest.raises((InputError, InputTypeError)):
            attention(q, k, bad)
    with pytest.raises(InputTypeError):
        attention(q, k, v, causal=0)  # type: ignore[call-overload]
    assert not any(repeated)


def test_a_gradient_is_noticed(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    wanted = half(*SHAPE).requires_grad_()
    for _ in range(3):
        with torch.no_grad():
            expect(attention(q, wanted, v), q, wanted, v)
        with pytest.raises(GradientUnsupported):
            attention(q, wanted, v)
    assert not any(repeated)
    attention(q, k, v)
    assert repeated[-1]


def test_what_watches_a_call_sees_it(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    seen: list[str] = []

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatches(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    modes: tuple[Any, ...] = (Functions(), Dispatches())  # type: ignore[no-untyped-call]
    for mode in modes:
        seen.clear()
        with mode:
            attention(q, k, v)
        assert "hopwell.attention.default" in seen
    assert not any(repeated)


def test_transforms_are_noticed(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    seen: list[bool] = []

    def inside(x: Tensor) -> Tensor:
        out = attention(q, k, v)  # nothing of this call is transformed, but it is inside
        seen.append(repeated[-1])
        return x + out

    torch.func.vmap(inside)(torch.stack([q, q]))
    torch.func.grad(lambda x: inside(x).sum())(q)
    with forward_ad.dual_level():
        attention(q, k, v)
        seen.append(repeated[-1])
    with torch.inference_mode():
        assert attention(q, k, v).is_inference()
    traced = torch.jit.trace(attention, (q, k, v), check_trace=False)
    assert "hopwell::attention" in str(traced.graph)
    assert not any(seen)
    assert not attention(q, k, v).is_inference()


def test_inference_repeats_too(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    with torch.inference_mode():
        results = [attention(q, k, v) for _ in range(3)]
    assert repeated == [False, True, True]
    assert all(out.is_inference() for out in results)


def test_every_call_is_recorded(repeated: list[bool]) -> None:
    q, k, v = three(*SHAPE)
    attention(q, k, v)
    with record_dispatch() as calls:
        attention(q, k, v)
        attention(q, k, v)
    assert [call.cache for call in calls] == ["memory", "memory"]
    attention(q, k, v)
    assert repeated == [True, False, False, True]


def test_another_current_device_is_no_repetition(
    repeated: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = three(*SHAPE)
    for call in execution._prepared.values():
        monkeypatch.setattr(call, "device", 1)
    monkeypatch.setattr(execution, "_current_device", lambda: 1)
    attention(q, k, v)
    monkeypatch.setattr(execution, "_current_device", lambda: 0)
    attention(q, k, v)
    assert repeated == [True, False]


def test_without_the_guard_every_call_is_checked(
    repeated: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_guard", lambda *tensors: None)
    q, k, v = three(1, 9, 2, 64)
    for _ in range(4):
        expect(attention(q, k, v, causal=True), q, k, v, causal=True)
    assert not any(repeated)


def test_the_memo_is_bounded(repeated: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_PREPARED_LIMIT", 5)
    q, k, v = three(*SHAPE)
    for step in range(1, 12):
        for _ in range(3):
            attention(q, k, v, scale=step / 8)
        assert len(execution._last) <= 5


def test_one_tensor_in_several_places_is_right_too(repeated: list[bool]) -> None:
    q, k, _ = three(*SHAPE)
    for _ in range(3):
        expect(attention(q, q, q), q, q, q)
        expect(attention(q, k, k), q, k, k)
    assert not any(repeated)
