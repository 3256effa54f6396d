"""Every rule in one table: what it is called, which section it follows, how to fix it.

Sections are those of the PTX ISA, version 9.0; later versions move some numbers and keep names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        title: a few words.
        section: number and name in the PTX ISA.
        meaning: what the machine saw.
        breaks: what may happen on the GPU.
        fix: what most often is missing.
    """

    title: str
    section: str
    meaning: str
    breaks: str
    fix: str


_RACES = "PTX ISA 8.7.1, Conflict and Data-races"
_ASYNC_PROXY = "PTX ISA 9.7.9.25.2, Async Proxy"
_BAR = "PTX ISA 9.7.13.1, bar / barrier"
_WARP_SYNC = "PTX ISA 9.7.13.2, bar.warp.sync"
_CLUSTER = "PTX ISA 9.7.13.3, barrier.cluster"
_MBARRIER = "PTX ISA 9.7.13.15, mbarrier"
_INIT = "PTX ISA 9.7.13.15.9, mbarrier.init"
_EXPECT = "PTX ISA 9.7.13.15.5.1, expect-tx operation"
_ARRIVE = "PTX ISA 9.7.13.15.13, mbarrier.arrive"
_WAIT = "PTX ISA 9.7.13.15.16, mbarrier.test_wait / mbarrier.try_wait"
_BULK_WAIT = "PTX ISA 9.7.9.25.6.2, cp.async.bulk.wait_group"
_WGMMA = "PTX ISA 9.7.15.5.2, wgmma.mma_async"
_WGMMA_FENCE = "PTX ISA 9.7.15.7.1, wgmma.fence"
_WGMMA_WAIT = "PTX ISA 9.7.15.7.3, wgmma.wait_group"
_SETMAXNREG = "PTX ISA 9.7.19.5, setmaxnreg"
_SHARED = "PTX ISA 5.1.7, Shared State Space"
_GLOBAL = "PTX ISA 5.1.4, Global State Space"

_MEMORY = {
    "shared-memory-race": Rule(
        "two warps of a CTA use the same shared bytes with no order between them",
        _RACES,
        "At least one of the accesses writes, and no chain of releases and acquires orders them.",
        "The reader gets the old bytes, the new ones, or some of both.",
        "Arrive on a barrier after the first access and wait on it before the second.",
    ),
    "warp-race": Rule(
        "lanes of one warp are not ordered with each other",
        _WARP_SYNC,
        "One lane released, or went on, before the other lanes of its warp were known to be done.",
        "Lanes of a warp may drift apart: the release does not cover what the others still do.",
        "Put bar.warp.sync between the accesses of all lanes and the release by the elected one.",
    ),
    "distributed-shared-race": Rule(
        "CTAs of a cluster use the same shared bytes with no order between them",
        _RACES,
        "At least one of the accesses writes, and no release at cluster scope orders them.",
        "The peer overwrites or reads bytes that are still in use.",
        "Release at cluster scope on an mbarrier of the peer, or use barrier.cluster.",
    ),
    "global-race": Rule(
        "the same global bytes are used with no order between the accesses",
        _RACES,
        "At least one of the accesses writes, and no release and acquire pattern orders them.",
        "The result depends on which CTA runs first.",
        "Use atomics, or release at gpu scope after the write and acquire before the read.",
    ),
    "missing-proxy-fence": Rule(
        "an engine may not see what ordinary stores wrote",
        _ASYNC_PROXY,
        "Stores in the generic proxy happen before the engine's access, without a proxy fence.",
        "The tensor core or the copy engine reads stale bytes, however many barriers lie between.",
        "Put fence.proxy.async after the stores, before the barrier that the issuer waits on.",
    ),
    "bytes-in-flight": Rule(
        "bytes are used while an engine is not known to be done with them",
        _ASYNC_PROXY,
        "No wait on the mbarrier or group of the copy comes before the access.",
        "The access meets old bytes, or a part of the tile; a source changes under a store.",
        "Wait on the mbarrier phase or the group that completes the copy, then access.",
    ),
    "stale-phase": Rule(
        "a wait was satisfied by an earlier phase than the one that was meant",
        "PTX ISA 9.7.13.15.4, Phase of the mbarrier object",
        "The wait returned, and told nothing about the copy whose bytes are used.",
        "The tile of the turn before, or a part of the new one, is taken for the new one.",
        "Flip the parity each time the stage index wraps, from the right start, never reset it.",
    ),
    "stage-released-early": Rule(
        "a stage was released before its last reader was done",
        _WAIT,
        "The copy that refills the stage was let in by a release that came before a read.",
        "The reader sees bytes of the next tile.",
        "Arrive on the empty barrier after the last read, and after the wait for its wgmma.",
    ),
    "storage-aliased": Rule(
        "storage is taken over before its earlier tenant is done",
        _RACES,
        "Two named buffers share these bytes; a write of one is not ordered after the other's use.",
        "One buffer's data ends up in the other.",
        "Order the first write of the new tenant after the last use of the old one.",
    ),
    "read-completion-only": Rule(
        "that a store has read its source was taken for its completion",
        _BULK_WAIT,
        "wait_group.read says that the sources may be reused, not that the writes are visible.",
        "The written bytes are read, or written again, before they have arrived.",
        "Wait without .read where the destination matters.",
    ),
    "uninitialised-read": Rule(
        "bytes are read that nothing has written",
        _SHARED,
        "Neither the launch nor any access before this one wrote these bytes.",
        "The value is whatever the last kernel left there.",
        "Write the bytes first, or do not read them.",
    ),
    "out-of-bounds-shared": Rule(
        "an access lies outside the CTA's shared memory",
        _SHARED,
        "The address is not inside the shared memory of a CTA of the cluster.",
        "The launch fails with an illegal address, or another buffer is hit.",
        "Check the offset against the dynamic shared memory that the launch asks for.",
    ),
    "out-of-bounds-global": Rule(
        "an access lies outside every buffer of the launch",
        _GLOBAL,
        "The address is inside no tensor that was passed.",
        "The launch fails with an illegal address, or another tensor is hit.",
        "Predicate the access by the tensor's extents.",
    ),
    "out-of-bounds-local": Rule(
        "an access lies outside the thread's local memory",
        "PTX ISA 5.1.5, Local State Space",
        "The address is inside no local variable of the thread: an index beyond an array, mostly.",
        "The launch fails with an illegal address, or another variable of the thread is hit.",
        "Check the index against the array's extent.",
    ),
    "misaligned-access": Rule(
        "an address is no multiple of what the instruction needs",
        "PTX ISA 6.4.1, Addresses as Operands",
        "The address is not aligned to the size of the access.",
        "The launch fails with a misaligned address.",
        "Align the buffer, or use a narrower access.",
    ),
    "dangling-copy": Rule(
        "a CTA exits while an engine still uses its shared memory",
        _BULK_WAIT,
        "Its last warp left and nobody knew that the engine was done with the CTA's memory.",
        "The next CTA on that SM is read or overwritten.",
        "Wait for the bulk group (.read suffices) or the mbarrier before the kernel ends.",
    ),
}

_BARRIERS = {
    "expected-bytes-too-few": Rule(
        "a phase completed before all bytes of its copies",
        _EXPECT,
        "The copies of a phase bring more bytes than its expect-tx announced.",
        "A waiter goes on with a part of the tile; later phases are off by the rest.",
        "Expect the sum of the bytes of every copy that signals this phase.",
    ),
    "expected-bytes-too-many": Rule(
        "a phase expects bytes that no copy brings",
        _EXPECT,
        "Every copy has landed and the phase still waits for bytes.",
        "The waiters hang.",
        "Expect the sum of the bytes of every copy that signals this phase, and no more.",
    ),
    "barrier-never-armed": Rule(
        "a copy signals a barrier that expected nothing",
        _EXPECT,
        "complete-tx came without an expect-tx: the transaction count is negative.",
        "The phase cannot complete, or completes a turn late.",
        "Arrive with expect_tx in the phase that the copy signals.",
    ),
    "arrival-count": Rule(
        "more arrivals than a phase has left",
        "PTX ISA 9.7.13.15.3, Contents of the mbarrier object",
        "An arrival counts for more than the pending count of the phase in progress.",
        "The pending count leaves its valid range: what follows is undefined.",
        "Initialise the barrier with the sum of all arrivals of a phase.",
    ),
    "parity-operand": Rule(
        "a parity other than 0 or 1",
        _WAIT,
        "The phase parity of a wait is a phase number that was not taken modulo two.",
        "The wait behaves as for another phase.",
        "Take the phase modulo two.",
    ),
    "uninitialised-barrier": Rule(
        "an mbarrier is used before its initialisation is known",
        _INIT,
        "No order leads from mbarrier.init to this use, or there is no initialisation.",
        "The barrier counts from whatever was in memory.",
        "fence.mbarrier_init by the initialising thread, then a CTA or cluster barrier for all.",
    ),
    "named-barrier-count": Rule(
        "the thread counts given to a named barrier disagree",
        _BAR,
        "Participants of one generation name different counts, or no multiple of the warp size.",
        "Generations complete early, or never.",
        "Give every bar.sync and bar.arrive of a barrier the count of all its threads.",
    ),
    "named-barrier-divergence": Rule(
        "a warp is at a named barrier twice in one generation, or in parts",
        _BAR,
        "The groups that meet at a barrier do not call it equally often.",
        "One group completes a generation alone; the other meets the wrong one, or hangs.",
        "Every path of every group must make the same calls in the same order.",
    ),
    "dangling-arrival": Rule(
        "an arrival at a CTA of the cluster that may have exited",
        _ARRIVE,
        "Nothing keeps the CTA that owns the mbarrier until the arrival has come.",
        "The arrival hits memory that the next CTA uses, or faults.",
        "Let the producer wait for the last releases of every stage before it exits.",
    ),
    "peer-cta-gone": Rule(
        "shared memory of a CTA is used after that CTA has exited",
        _CLUSTER,
        "A peer of the cluster has left; its memory and barriers are gone with it.",
        "The access faults or hits another CTA.",
        "End with barrier.cluster, so that no CTA leaves before its peers are done with it.",
    ),
    "unbounded-loop": Rule(
        "a loop ran past the limit of instructions",
        "PTX ISA 9.7.12, Control Flow Instructions",
        "The run was stopped; the loop's condition had not changed anything for long.",
        "The kernel may never end.",
        "Look at the loop's bounds; raise the limit if the work is really that long.",
    ),
    "trap": Rule(
        "the kernel aborts itself",
        "PTX ISA 9.7.19.4, trap",
        "A trap instruction was executed, as a failed assertion does.",
        "The launch fails and the context with it.",
        "Find out which condition led there.",
    ),
    "deadlock": Rule(
        "every warp that has not exited waits for ever",
        _MBARRIER,
        "Nobody is left who could change what the waiting warps wait for.",
        "The kernel hangs.",
        "Follow the wait-for graph to the arrival, copy or phase that does not come.",
    ),
}

_TENSOR_CORES = {
    "wgmma-accumulator-in-flight": Rule(
        "an accumulator is touched before its wgmma is complete",
        _WGMMA_WAIT,
        "No wgmma.wait_group that covers the group lies between.",
        "The value is undefined.",
        "Wait for the group before the accumulator is read, scaled or stored.",
    ),
    "wgmma-operand-in-flight": Rule(
        "a register operand is overwritten before its wgmma is complete",
        _WGMMA,
        "The wgmma may still read the registers of A.",
        "The product is computed with the new values.",
        "Wait for the group before the registers are reused.",
    ),
    "wgmma-operand-overwritten": Rule(
        "a shared operand is overwritten while a wgmma may read it",
        _WGMMA,
        "The write is not ordered after the completion of the group.",
        "The product is computed with bytes of the next tile.",
        "Write, or let the copy start, only after wgmma.wait_group and a release.",
    ),
    "missing-wgmma-fence": Rule(
        "registers of a wgmma were touched without wgmma.fence",
        _WGMMA_FENCE,
        "The warpgroup accessed the registers after the last fence, before this wgmma.",
        "The wgmma may see the old values.",
        "wgmma.fence before the first wgmma and after every access to its registers.",
    ),
    "wgmma-divergence": Rule(
        "a warpgroup does not execute a wgmma as one",
        _WGMMA,
        "Some lanes, or some of the four warps, do not execute the same wgmma.mma_async.",
        "Undefined behaviour: rows of the product are missing, or the group hangs.",
        "Execute wgmma in all four warps of the group, with all lanes, on one path.",
    ),
    "register-pool-exhausted": Rule(
        "setmaxnreg asks for more registers than the CTA can ever have",
        _SETMAXNREG,
        "The pool cannot satisfy the request, whoever gives back what.",
        "The warpgroup hangs.",
        "Let the producers give registers back first, and keep the sum within the pool.",
    ),
    "setmaxnreg-target": Rule(
        "setmaxnreg asks for a register count that it may not",
        _SETMAXNREG,
        "The count is no multiple of 8 from 24 to 256, or inc lowers it, or dec raises it.",
        "Undefined behaviour.",
        "Decrease below and increase above what the warp holds, which is maxnreg at launch.",
    ),
    "setmaxnreg-divergence": Rule(
        "a warpgroup does not change its registers as one",
        _SETMAXNREG,
        "Its warps do not all execute the same setmaxnreg, or one has exited.",
        "Undefined behaviour, in practice a hang.",
        "Execute setmaxnreg in all four warps of the group, on one path.",
    ),
}

RULES: dict[str, Rule] = {**_MEMORY, **_BARRIERS, **_TENSOR_CORES}
