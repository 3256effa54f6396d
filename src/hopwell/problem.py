"""What is asked: a frozen, canonical description of one attention call, without tensors.

:meth:`Problem.from_tensors` checks every argument of a call, once. A problem can also be written
down directly (no torch needed), which is how the command line asks what a machine would do.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hopwell.errors import InputError, InputTypeError
from hopwell.frozen import record
from hopwell.masks import Mask

if TYPE_CHECKING:
    from torch import Tensor

#: dtypes that some backend takes, by name.
DTYPES = ("bfloat16", "float16", "float32", "float64")

#: What the tensor copy engine can address (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ALIGNMENT = 16
TMA_STRIDE_LIMIT = 1 << 40

#: How a tensor lies: see :func:`stride_class`.
STRIDE_CLASSES = ("tma", "other")

_NOTHING = "Nothing was computed."
#: Kernels hold scale and softcap in float32, where what is smaller becomes 0 (and 0 * -inf is no
#: score) and what is larger overflows once log2(e) is folded in.
_LEAST_FACTOR, _LARGEST_FACTOR = 2.0**-126, 2.0**127
_INT64_MAX = (1 << 63) - 1

Window = tuple["int | None", "int | None"]


@record(frozen=True)
class Problem:
    """Sizes, dtype, layout classes, mask and features of one call.

    ``q_strides``, ``k_strides`` and ``v_strides`` are classes: ``"tma"`` when the copy engine can
    address the tensor as it lies (base and strides multiples of 16 bytes), else ``"other"``.
    ``arch`` is ``"sm_90"`` for compute capability 9.0 and None on a CPU. ``mask`` is reduced to
    the bounds that hide something at these lengths.
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    dtype: str
    device: str
    scale: float
    arch: str | None = None
    q_strides: str = "tma"
    k_strides: str = "tma"
    v_strides: str = "tma"
    mask: Mask = Mask()
    softcap: float | None = None
    sink: bool = False
    return_lse: bool = False
    deterministic: bool = False
    needs_grad: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_k"):
            _check_int(name, getattr(self, name), least=0)
        for name in ("head_dim", "head_dim_v"):
            _check_int(name, getattr(self, name), least=1)
        _check_heads(self.heads_q, self.heads_k)
        if self.dtype not in DTYPES:
            raise _dtype_error("dtype", self.dtype)
        self._check_place()
        for name in ("q_strides", "k_strides", "v_strides"):
            _check_one_of(name, getattr(self, name), STRIDE_CLASSES)
        if not isinstance(self.mask, Mask):
            raise _type_error("mask", "a Mask", type(self.mask).__name__)
        for side in ("left", "right"):
            _window_bound(side, getattr(self.mask, side))
        for name in ("sink", "return_lse", "deterministic", "needs_grad"):
            check_flags(**{name: getattr(self, name)})
        if self.scale is None:
            raise _type_error("scale", "a real number", "None")
        check_positive("scale", self.scale)
        check_positive("softcap", self.softcap)
        object.__setattr__(self, "mask", self.mask.canonical(self.seqlen_q, self.seqlen_k))

    def _check_place(self) -> None:
        """A device type is a word, as PyTorch has them; a GPU has an arch."""
        if not isinstance(self.device, str):
            raise _type_error("device", "a str", type(self.device).__name__)
        if not (self.device.isascii() and self.device.isalpha() and self.device.islower()):
            raise _value_error("device", "a device type such as cpu or cuda", repr(self.device))
        if self.arch is not None and not isinstance(self.arch, str):
            raise _type_error("arch", "a str or None", type(self.arch).__name__)
        if self.arch is None and self.device != "cuda":
            return
        if not _is_arch(self.arch or ""):
            raise _value_error("arch", "sm_ and a number, such as sm_90", repr(self.arch))

    @property
    def is_empty(self) -> bool:
        """No output element exists; nothing has to run."""
        return self.batch == 0 or self.seqlen_q == 0 or self.heads_q == 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**vars(self), "mask": self.mask._asdict()}

    @classmethod
    def from_tensors(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        window: Window | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink: Tensor | None = None,
        return_lse: bool = False,
        deterministic: bool = False,
        needs_grad: bool = False,
    ) -> Problem:
        """Check every argument of :func:`hopwell.attention` and describe the call.

        Raises:
            InputError: a value, shape, device or stride that cannot be meant.
            InputTypeError: a wrong Python type or dtype.
        """
        check_flags(causal=causal, return_lse=return_lse, deterministic=deterministic)
        left_right = None if window is None else check_window(window)
        scale, softcap = real("scale", scale), real("softcap", softcap)
        check_tensors(q, k, v, sink)
        check_data(q)
        batch, seqlen_q, heads_q, head_dim = q.shape
        return cls(
            batch=batch,
            seqlen_q=seqlen_q,
            seqlen_k=k.shape[1],
            heads_q=heads_q,
            heads_k=k.shape[2],
            head_dim=head_dim,
            head_dim_v=v.shape[3],
            dtype=dtype_name(q),
            device=q.device.type,
            arch=_arch(q.device.index) if q.device.type == "cuda" else None,
            q_strides=stride_class(q),
            k_strides=stride_class(k),
            v_strides=stride_class(v),
            mask=Mask.of(causal, left_right),
            scale=head_dim**-0.5 if scale is None else scale,
            softcap=softcap,
            sink=sink is not None,
            return_lse=return_lse,
            deterministic=deterministic,
            needs_grad=needs_grad,
        )


# -- layout ----------------------------------------------------------------------------------


def dtype_name(x: Tensor) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(x.dtype).removeprefix("torch.")


def stride_class(x: Tensor) -> str:
    """``"tma"`` when the copy engine can address ``x``, whose last dimension is contiguous.

    Strides of dimensions that hold at most one index are never used and do not count.
    """
    if x.numel() == 0:
        return "tma"
    if x.data_ptr() % TMA_ALIGNMENT:
        return "other"
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        step = stride * x.element_size()
        if size > 1 and (step % TMA_ALIGNMENT or step >= TMA_STRIDE_LIMIT):
            return "other"
    return "tma"


@cache
def _arch(index: int | None) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def _is_arch(text: str) -> bool:
    """``sm_``, two or three digits, perhaps a small letter."""
    number = text[3:-1] if text[-1:].islower() else text[3:]
    return text.isascii() and text.startswith("sm_") and number.isdigit() and len(number) in (2, 3)


# -- checks: each raises a typed error that says expected, actual and consequence --------------


def _value_error(what: str, expected: object, actual: object) -> InputError:
    return InputError(what, expected=expected, actual=actual, consequence=_NOTHING)


def _type_error(what: str, expected: object, actual: object) -> InputTypeError:
    return InputTypeError(what, expected=expected, actual=actual, consequence=_NOTHING)


def _dtype_error(what: str, actual: object) -> InputTypeError:
    return _type_error(what, f"one of {', '.join(DTYPES)}", actual)


def _check_one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise _type_error(what, "a str", type(value).__name__)
    if value not in known:
        raise _value_error(what, f"one of {', '.join(known)}", repr(value))


def _check_int(what: str, value: object, least: int, note: str = "") -> None:
    # bool is an int to Python; True tokens is a mistake to a user.
    if not isinstance(value, int) or isinstance(value, bool):
        raise _type_error(what, "an int", type(value).__name__)
    if value < least:
        raise _value_error(what, f"at least {least}{note}", value)


def _check_heads(heads_q: int, heads_k: int) -> None:
    if heads_q == heads_k == 0:
        return
    if heads_k == 0 or heads_q % heads_k != 0:
        raise _value_error(
            "heads", "heads_q a multiple of heads_k", f"heads_q={heads_q}, heads_k={heads_k}"
        )


def check_flags(**flags: object) -> None:
    """Every value is True or False, not something that merely looks like it."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise _type_error(name, "a bool", f"{value!r} ({type(value).__name__})")


def check_window(window: object) -> Window:
    """``window`` as a pair of plain ints or None. Negative bounds are errors, not "unbounded"."""
    if not isinstance(window, (tuple, list)):
        raise _type_error("window", "None or (left, right)", type(window).__name__)
    if len(window) != 2:
        raise _value_error("window", "two bounds, (left, right)", f"{len(window)}")
    left, right = window
    return _window_bound("left", left), _window_bound("right", right)


def _window_bound(side: str, value: Any) -> int | None:
    if value is None:
        return None
    _check_int(f"window {side}", value, least=0, note=" (None is unbounded)")
    if value > _INT64_MAX:
        raise _value_error(f"window {side}", "a 64-bit int (None is unbounded)", value)
    return value


def real(what: str, value: Any) -> float | None:
    """``value`` as a float; None stays None. Its range is :func:`check_positive`'s."""
    if value is None or type(value) is float:
        return value
    check_positive(what, value)
    return float(value)


def check_positive(what: str, value: Any) -> None:
    """``value`` is None or a positive real number that float32 holds in full precision."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _type_error(what, "a real number or None", type(value).__name__)
    if not _LEAST_FACTOR <= value <= _LARGEST_FACTOR:  # false for NaN too
        expected = "finite and positive, from 2^-126 to 2^127 (None: default)"
        raise _value_error(what, expected, value)


def check_tensors(q: Any, k: Any, v: Any, sink: Any) -> None:
    """Type, layout, rank, dtype, device, shapes and strides of the tensors, from metadata only.

    Works on fake tensors and symbolic sizes.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, x, rank=4)
    _check_same("dtype", "q, k and v of one dtype", q.dtype, k.dtype, v.dtype)
    _check_same("device", "q, k and v on one device", q.device, k.device, v.device)
    _check_same("batch", "one batch size", q.shape[0], k.shape[0], v.shape[0])
    _check_same("seqlen_k", "k and v of one length", k.shape[1], v.shape[1])
    _check_same("heads_k", "k and v of one head count", k.shape[2], v.shape[2])
    _check_same("head_dim", "q and k of one head dimension", q.shape[3], k.shape[3])
    for name, x in (("head_dim", q), ("head_dim_v", v)):
        if x.shape[3] < 1:
            raise _value_error(name, "at least 1", x.shape[3])
    _check_heads(q.shape[2], k.shape[2])
    if sink is not None:
        _check_tensor("sink", sink, rank=1)
        _check_same("device", "sink on the device of q", q.device, sink.device)
        _check_same("sink", "one value per query head", q.shape[2], sink.shape[0])


def check_data(q: Tensor) -> None:
    """The tensors hold data (``meta`` tensors only describe it)."""
    if q.device.type == "meta":
        raise _value_error("device", "a device that holds data", "meta")


def _check_tensor(name: str, x: Any, rank: int) -> None:
    import torch

    if not isinstance(x, torch.Tensor):
        raise _type_error(name, "a torch.Tensor", type(x).__name__)
    if x.is_nested or x.layout is not torch.strided:
        layout = "nested" if x.is_nested else str(x.layout)
        raise _type_error(f"{name} layout", "a dense tensor (torch.strided)", layout)
    if dtype_name(x) not in DTYPES:
        raise _dtype_error(f"{name} dtype", str(x.dtype))
    if x.dim() != rank:
        shape = "(batch, seqlen, heads, head_dim)" if rank == 4 else "(heads_q,)"
        raise _value_error(f"{name} shape", shape, tuple(x.shape))
    if rank == 4 and x.stride(3) != 1 and x.shape[3] > 1 and x.numel() > 0:
        raise InputError(
            f"{name} strides",
            expected="a contiguous last dimension (stride 1)",
            actual=tuple(x.stride()),
            consequence=f"{_NOTHING} Call .contiguous() on it; no copy is made silently.",
        )


def _check_same(what: str, expected: str, first: object, *others: object) -> None:
    for other in others:
        if other != first:
            actual = ", ".join(str(value) for value in (first, *others))
            raise _value_error(what, expected, actual)
