"""A fault and its control as one template: a minimal kernel for one rule.

The template is PTX with marked differences, in the notation of ``git diff --word-diff``: text in
``[-...-]`` is in the failing kernel alone, text in ``{+...+}`` in the clean one alone. Comments
at the end of a line say what the report has to name: ``// first`` and ``// second`` are the two
sides where their order is fixed, ``// side`` either one of them, ``// seen`` the only one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture.launch import Launch, aligned_copy

Words = NDArray[np.uint32]

WORDS = 512
"""32-bit words of each of the three buffers."""

_FAILING = re.compile(r"\[-(.*?)-\]", re.DOTALL)
_CLEAN = re.compile(r"\{\+(.*?)\+\}", re.DOTALL)
_MARK = re.compile(r"//\s*(first|second|side|seen)\b")

_PROLOGUE = """.version 8.8
.target sm_90a
.address_size 64
{shared}
.visible .entry kernel(.param .u64 p_in, .param .u64 p_out, .param .u64 p_work) {directives}
{{
    .reg .pred %p<16>;
    .reg .b16 %h<16>;
    .reg .b32 %r<64>, %x, %lane, %warp, %rank;
    .reg .b64 %d<32>, %in, %out, %work, %mine;
    ld.param.u64 %in, [p_in];
    ld.param.u64 %out, [p_out];
    ld.param.u64 %work, [p_work];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    cvta.to.global.u64 %work, %work;
    mov.u32 %x, %tid.x;
    and.b32 %lane, %x, 31;
    shr.u32 %warp, %x, 5;
    mov.u32 %rank, %ctaid.x;
    mov.u32 %r60, %ntid.x;
    mad.lo.u32 %r61, %rank, %r60, %x;
    mad.wide.u32 %mine, %r61, 4, %out;
    setp.eq.u32 %p0, %x, 0;
"""


@dataclass(frozen=True)
class Pair:
    """One rule's failing kernel and its clean control.

    Registers at hand: ``%x`` thread, ``%lane``, ``%warp``, ``%rank`` CTA, ``%in``/``%out``/
    ``%work`` buffers of 512 words, ``%mine`` this thread's word of the output, ``%p0`` thread 0,
    and numbered ``%p``, ``%r``, ``%d`` from 1 on. ``%in`` holds 1, 2, 3, ..., the others zeros.

    Attributes:
        rule: what the failing kernel has to be reported as.
        name: tells apart several pairs of one rule.
        template: the body, with marked differences and marked sides.
        result: the clean kernel's output, from the input: uint32 (512,) to uint32 (n,).
        missing: what the report has to say about the missing edge: a part of it, or one of
            several.
        shared: declarations at module level.
        options: passed to ``emulate``.
    """

    rule: str
    name: str
    template: str
    result: Callable[[Words], Any]
    missing: str | tuple[str, ...] = ""
    shared: str = ""
    directives: str = ""
    grid: int = 1
    block: int = 32
    cluster: int = 1
    shared_bytes: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """As tests are called."""
        return f"{self.rule}: {self.name}" if self.name else self.rule

    def says(self, words: str) -> bool:
        """Whether ``words`` about the missing edge are the expected ones."""
        parts = (self.missing,) if isinstance(self.missing, str) else self.missing
        return any(part in words for part in parts)

    def ptx(self, failing: bool) -> str:
        """The text of one side."""
        drop, keep = (_CLEAN, _FAILING) if failing else (_FAILING, _CLEAN)
        return kernel(keep.sub(r"\1", drop.sub("", self.template)), self.shared, self.directives)

    def marks(self) -> dict[str, set[int]]:
        """Lines of the failing text that the report has to name, by mark."""
        found: dict[str, set[int]] = {}
        for number, line in enumerate(self.ptx(failing=True).splitlines(), 1):
            for mark in _MARK.findall(line):
                found.setdefault(mark, set()).add(number)
        return found

    def run(self, failing: bool, seeds: int) -> tuple[Report, Words]:
        """Emulate one side; the report, and the output under the last seed."""
        launch = launch_of(
            self.ptx(failing), self.grid, self.block, self.cluster, self.shared_bytes
        )
        return emulate(launch, seeds=seeds, **self.options), output_of(launch)


def kernel(body: str, shared: str = "", directives: str = "") -> str:
    """A module with one kernel, whose body finds the registers that :class:`Pair` names."""
    head = _PROLOGUE.format(shared=shared, directives=directives)
    return f"{head}{body}\n    ret;\n}}\n"


def launch_of(
    text: str, grid: int = 1, block: int = 32, cluster: int = 1, shared_bytes: int = 0
) -> Launch:
    """A launch of such a kernel over new buffers."""
    source = np.arange(1, WORDS + 1, dtype=np.uint32)
    buffers = [aligned_copy(a) for a in (source, source * 0, source * 0)]
    return Launch.of(
        text, "kernel", (grid, 1, 1), (block, 1, 1), buffers, names=["in", "out", "work"],
        cluster=(cluster, 1, 1), shared_bytes=shared_bytes, filename="kernel.ptx",
    )  # fmt: skip


def output_of(launch: Launch) -> Words:
    """What the last run left in the output."""
    words: Words = launch.buffer("out").array
    return words


# -- pieces that many kernels share ------------------------------------------------------


def barriers(**counts: int) -> str:
    """Thread 0 initialises mbarriers, and everybody knows."""
    inits = "".join(f"@%p0 mbarrier.init.shared::cta.b64 [{n}], {c};\n" for n, c in counts.items())
    return f"{inits}@%p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"


def declared(*names: str) -> str:
    """Shared mbarriers."""
    return "".join(f".shared .align 8 .b64 {name};\n" for name in names)


def wait(barrier: str, parity: int | str, label: str, mark: str = "") -> str:
    """Wait until the phase of a parity is complete."""
    note = f" // {mark}" if mark else ""
    return (
        f"$wait_{label}:\n"
        f"mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity};{note}\n"
        f"@!%p9 bra $wait_{label};\n"
    )


def load(destination: str, source: str, size: int, barrier: str, guard: str = "%p0") -> str:
    """One thread copies from global to shared memory; the mbarrier counts the bytes."""
    return (
        f"@{guard} cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[{destination}], [{source}], {size}, [{barrier}];"
    )


def expect(barrier: str, size: int | str, guard: str = "%p0") -> str:
    """One thread arrives and says how many bytes the phase brings."""
    return f"@{guard} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {size};"


CLUSTER_SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
