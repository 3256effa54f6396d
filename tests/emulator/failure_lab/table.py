"""The failure lab's table: every row of the spec's bug tables in 0x02 to 0x05, made in our forward.

Each row says how the fault is made, which rule must name it, and which other rules may follow from
it. A row that the machine cannot show says where it is caught instead. The rows of 0x0E that are
the same fault are named beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.emulator.failure_lab.edits import Edit
from tests.emulator.own_forward import Shape

from hopwell.hopper.plan import (
    HopperForwardPlan,
    OutputStorage,
    PSource,
    Rescale,
    forward_plan,
)

#: Small tiles: few instructions, and all that a plan has: a ring that wraps, turns, a diagonal.
PLAN = replace(
    forward_plan("bfloat16", (64, 64), True),
    tile_m=128,
    tile_n=32,
    producer_registers=24,
    consumer_registers=240,
)
SERIAL = replace(PLAN, overlap=False, rescale=Rescale.BEFORE)
SHARED_P = replace(PLAN, p_source=PSource.SHARED)
ALIASED = replace(PLAN, q_stages=1, output_storage=OutputStorage.ALIAS_Q)

#: Four tiles on one CTA, up to four key blocks in a ring of two stages; the causal diagonal lets
#: one warpgroup pass over blocks that the other needs, and leaves rows without a key.
SHAPE = Shape(batch=1, rows=168, keys=106, heads=2, key_heads=1, ctas=1)


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        row: the row of the spec, in a few words; unique.
        section: of the spec's table.
        made: how the fault is made, in words.
        expected: the rule that has to name it.
        says: words that the report must hold: for a deadlock, who waits for what.
        follows: rules that may be reported as well: what the fault leads to.
        edits: of our kernel's source.
        also: the same fault in 0x0E's table.
    """

    row: str
    section: str
    made: str
    expected: str
    says: str = ""
    follows: frozenset[str] = frozenset()
    edits: tuple[Edit, ...] = ()
    plan: HopperForwardPlan = PLAN
    also: str = ""


@dataclass(frozen=True)
class Elsewhere:
    """A row that no run of the machine can show: the result is right, and nothing races.

    Attributes:
        caught: by what, in words.
        differs: the line of the plan's expectations that the compiled kernel breaks; "" where the
            fault is not one of a compiled kernel.
    """

    row: str
    section: str
    made: str
    caught: str
    differs: str = ""
    edits: tuple[Edit, ...] = ()
    plan: HopperForwardPlan = PLAN
    also: str = ""


def _follows(*rules: str) -> frozenset[str]:
    return frozenset(rules)


_CONSUME = "forward.HopperForward.consume"
_PAIR = "consumer.MmaWarpgroup.pair"
_PASS_OVER = "consumer.MmaWarpgroup.pass_over"
_ACQUIRE = "ring.Ring.acquire"

TRANSFERS = (
    Fault(
        "a tile is read without waiting for its copy",
        "0x02",
        "the full barrier of K is not waited for",
        "bytes-in-flight",
        follows=_follows("stage-released-early"),
        edits=(Edit(_PAIR, "rings.k.wait_full(ordinal)", "pass"),),
        also="Wait too late",
    ),
    Fault(
        "a stage is filled without waiting for its release",
        "0x02",
        "the producer does not wait for the empty barrier",
        "shared-memory-race",
        follows=_follows("arrival-count", "deadlock", "stale-phase"),
        edits=(Edit(_ACQUIRE, "self.wait_empty(ordinal)", "pass"),),
        also="Reuse SMEM stage too early",
    ),
    Fault(
        "a stage is not released",
        "0x02",
        "K's stage of the first half is never released",
        "deadlock",
        says="of 8 arrivals",
        edits=(Edit("consumer.MmaWarpgroup.overlapped", "rings.k.release(ordinal)", "pass"),),
    ),
    Fault(
        "the copy brings more bytes than are expected",
        "0x02",
        "half of the bytes are expected",
        "expected-bytes-too-few",
        edits=(
            Edit(
                _ACQUIRE,
                "self.full_spec.transaction_bytes)",
                "self.full_spec.transaction_bytes // 2)",
            ),
        ),
    ),
    Fault(
        "the copy brings fewer bytes than are expected",
        "0x02",
        "twice the bytes are expected",
        "expected-bytes-too-many",
        edits=(
            Edit(
                _ACQUIRE,
                "self.full_spec.transaction_bytes)",
                "self.full_spec.transaction_bytes * 2)",
            ),
        ),
    ),
    Fault(
        "arriving takes the place of the copy's completion",
        "0x02",
        "the producer arrives without expecting any bytes",
        "barrier-never-armed",
        follows=_follows("shared-memory-race", "wgmma-operand-overwritten"),
        edits=(
            Edit(
                _ACQUIRE,
                "cute.arch.mbarrier_arrive_and_expect_tx(full, self.full_spec.transaction_bytes)",
                "cute.arch.mbarrier_arrive(full)",
            ),
        ),
    ),
    Fault(
        "a consumer waits for the other parity",
        "0x02",
        "the parity of every full wait is inverted",
        "stale-phase",
        follows=_follows(
            "uninitialised-read",
            "wgmma-operand-overwritten",
            "arrival-count",
            "deadlock",
            "shared-memory-race",
        ),
        edits=(
            Edit(
                "ring.Ring.wait_full",
                "self.parity(ordinal))",
                "self.parity(ordinal) ^ 1)",
            ),
        ),
    ),
)

PRODUCTS = (
    Fault(
        "a product is used without waiting for its group",
        "0x02",
        "the wait for the last product of a tile is left out",
        "wgmma-accumulator-in-flight",
        follows=_follows("stage-released-early", "dangling-copy"),
        edits=(
            Edit(
                "consumer.MmaWarpgroup.overlapped",
                "self.issue_output(last)\n        warpgroup.wait_group(0)",
                "self.issue_output(last)",
            ),
        ),
    ),
    Fault(
        "P in shared memory is read without a proxy fence",
        "0x02",
        "the proxy fence after P's stores is left out",
        "missing-proxy-fence",
        edits=(
            Edit("consumer.MmaWarpgroup.place_p", "cute.arch.fence_view_async_shared()", "pass"),
        ),
        plan=SHARED_P,
    ),
    Fault(
        "registers of a product are not fenced",
        "0x02",
        "every wgmma.fence is left out",
        "missing-wgmma-fence",
        edits=(Edit("fragments.issue", "    warpgroup.fence()\n", ""),),
    ),
    Fault(
        "O's storage is taken by the next Q too early",
        "0x02",
        "Q's stage is released before the store of the O that lies in it was read",
        "storage-aliased",
        edits=(
            Edit(
                "epilogue.Epilogue.write",
                "                cute.arch.cp_async_bulk_wait_group(0, read=True)\n"
                "                rings.q.release(q_ordinal)",
                "                rings.q.release(q_ordinal)",
            ),
        ),
        plan=ALIASED,
    ),
)

REGISTERS = (
    Fault(
        "the producer keeps its registers",
        "0x02",
        "setmaxnreg.dec is left out",
        "register-pool-exhausted",
        edits=(
            Edit(
                "forward.HopperForward.kernel",
                "cute.arch.setmaxregister_decrease(plan.producer_registers)",
                "pass",
            ),
        ),
    ),
    Fault(
        "the producer gives up too few registers",
        "0x02",
        "its target is 56 where 24 fits",
        "register-pool-exhausted",
        edits=(
            Edit(
                "forward.HopperForward.kernel",
                "setmaxregister_decrease(plan.producer_registers)",
                "setmaxregister_decrease(56)",
            ),
        ),
        also="Producer gets excessive registers",
    ),
    Fault(
        "setmaxnreg is executed by a part of its warpgroup",
        "0x02",
        "the last warp of each warpgroup skips setmaxnreg.inc",
        "setmaxnreg-divergence",
        edits=(
            Edit(
                "forward.HopperForward.kernel",
                "            cute.arch.setmaxregister_increase(plan.consumer_registers)",
                "            if warp % WARPS_PER_WARPGROUP < 3:\n"
                "                cute.arch.setmaxregister_increase(plan.consumer_registers)",
            ),
        ),
    ),
)

PIPELINE = (
    Fault(
        "K/V state is reset at every tile",
        "0x03",
        "the consumer's ordinal starts from 0 in every tile",
        "stale-phase",
        edits=(Edit(_CONSUME, "kv_ordinal += blocks", "kv_ordinal = Int32(0)"),),
        also="Reset K/V phase state at a persistent-work boundary",
    ),
    Fault(
        "the producer skips a block that the consumer expects",
        "0x03",
        "the producer leaves out the second block of a tile",
        "deadlock",
        says=r"k_full\[1\], for phase 0",
        edits=(
            Edit(
                "producer.Producer.walk",
                "for j in cutlass.range(1, blocks, unroll=1):\n"
                "                keys.load(ordinal + j, blocks - 1 - j)\n"
                "                values.load(ordinal + j - 1, blocks - j)",
                "for j in cutlass.range(2, blocks, unroll=1):\n"
                "                keys.load(ordinal + j, blocks - 1 - j)\n"
                "                values.load(ordinal + j - 1, blocks - j)",
            ),
        ),
        also="Producer and consumer enumerate different sparse blocks",
    ),
    Fault(
        "a branch of the consumer leaves without releasing V",
        "0x03",
        "V is not released on the branch that passes over blocks",
        "deadlock",
        says=r"v_empty\[0\].* 4 of 8 arrivals",
        edits=(Edit(_PASS_OVER, "rings.v.release(ordinal + j)", "pass"),),
    ),
    Fault(
        "K is released before the wait for QK",
        "0x03",
        "the release stands before wait_group(1)",
        "stage-released-early",
        edits=(
            Edit(
                _PAIR,
                "        warpgroup.wait_group(1)\n        rings.k.release(ordinal)\n",
                "        rings.k.release(ordinal)\n        warpgroup.wait_group(1)\n",
            ),
        ),
    ),
    Fault(
        "V is released before the wait for PV",
        "0x03",
        "the release stands before wait_group(0)",
        "stage-released-early",
        edits=(
            Edit(
                _PAIR,
                "        warpgroup.wait_group(0)\n        rings.v.release(previous)\n",
                "        rings.v.release(previous)\n        warpgroup.wait_group(0)\n",
            ),
        ),
    ),
    Fault(
        "the state advances without a release",
        "0x03",
        "K is not released in the steady pairs",
        "deadlock",
        says=r"k_empty\[1\].* 4 of 8 arrivals",
        edits=(Edit(_PAIR, "rings.k.release(ordinal)", "pass"),),
        also="Advance state without releasing K or V",
    ),
    Fault(
        "a stage is released that was never produced",
        "0x03",
        "after each tile the next stage of V is released too",
        "wgmma-operand-overwritten",
        follows=_follows("shared-memory-race", "stale-phase", "arrival-count", "deadlock"),
        edits=(
            Edit(
                _CONSUME,
                "            kv_ordinal += blocks\n",
                "            kv_ordinal += blocks\n            rings.v.release(kv_ordinal)\n",
            ),
        ),
    ),
    Fault(
        "a stage is reused without the parity of its generation",
        "0x03",
        "every wait is for parity 0",
        "stale-phase",
        follows=_follows("dangling-arrival", "arrival-count", "shared-memory-race"),
        edits=(
            Edit(
                "ring.Ring.parity",
                "return (ordinal >> (self.stages.bit_length() - 1)) & 1",
                "return Int32(0)",
            ),
        ),
    ),
    Fault(
        "the producer's tail is taken for a payload",
        "0x0E",
        "after each tile the producer loads one block of K more, which nobody waits for",
        "stale-phase",
        follows=_follows("shared-memory-race", "arrival-count", "dangling-copy"),
        edits=(
            Edit(
                "producer.Producer.walk",
                "            values.load(ordinal + blocks - 1, Int32(0))",
                "            values.load(ordinal + blocks - 1, Int32(0))\n"
                "            keys.load(ordinal + blocks, Int32(0))",
            ),
        ),
        also="Treat producer tail as a dummy payload",
    ),
)

SCHEDULER = (
    Fault(
        "the bootstrap arrival is left out",
        "0x04",
        "nobody primes the turns",
        "deadlock",
        says="named barrier 1: 128 of 256",
        edits=(Edit(_CONSUME, "worker.prime_turns()", "pass"),),
        also="Omit the scheduler bootstrap arrival",
    ),
    Fault(
        "a turn counts 128 participants",
        "0x04",
        "one warpgroup completes a round alone",
        "named-barrier-divergence",
        follows=_follows("deadlock"),
        edits=(Edit("plan.HopperForwardPlan.named_barriers", "2 * WARPGROUP", "WARPGROUP"),),
        also="Use the wrong named-barrier participant count",
    ),
    Fault(
        "a turn counts more than 256 participants",
        "0x04",
        "two warpgroups cannot complete a round",
        "named-barrier-count",
        says="128 of 384 threads",
        edits=(Edit("plan.HopperForwardPlan.named_barriers", "2 * WARPGROUP", "3 * WARPGROUP"),),
    ),
    Fault(
        "the physical warpgroup is taken for the local one",
        "0x04",
        "who waits counts the producer, who passes does not",
        "deadlock",
        says="named barrier 3: 128 of 256",
        edits=(
            Edit(
                "consumer.MmaWarpgroup.wait_turn",
                "NamedBarrier.TURN_1.value + self.group",
                "NamedBarrier.TURN_1.value + self.group + 1",
            ),
        ),
    ),
    Fault(
        "one group skips a conditional barrier",
        "0x04",
        "a group that passes over blocks takes no turns",
        "deadlock",
        says="named barrier 1: 128 of 256",
        edits=(
            Edit(
                _PASS_OVER,
                "                self.take_and_pass_turn()\n            rings.v",
                "                pass\n            rings.v",
            ),
        ),
        also="Diverge scheduler calls across consumer groups",
    ),
    Fault(
        "the final arrive of the serial body is left out",
        "0x04",
        "the turn is not passed after the last block",
        "deadlock",
        says="named barrier 2: 128 of 256",
        edits=(
            Edit(
                "consumer.MmaWarpgroup.serial",
                "        if const_expr(self.plan.ping_pong):\n            self.pass_turn()",
                "        pass",
            ),
        ),
        plan=SERIAL,
        also="Omit the non-overlap drain arrival",
    ),
    Fault(
        "the turns are primed again at every tile",
        "0x04",
        "each tile deposits another credit",
        "named-barrier-divergence",
        edits=(
            Edit(
                _CONSUME,
                "            worker.softmax.reset()\n",
                "            worker.prime_turns()\n            worker.softmax.reset()\n",
            ),
        ),
        also="Re-prime scheduler at every persistent work tile",
    ),
    Fault(
        "a turn is taken for the readiness of V",
        "0x04",
        "V is not waited for: the turn has come",
        "bytes-in-flight",
        follows=_follows("stage-released-early", "shared-memory-race", "arrival-count", "deadlock"),
        edits=(Edit(_PAIR, "rings.v.wait_full(previous)", "pass"),),
    ),
)

OVERLAP = (
    Fault(
        "scores are read before the covering wait",
        "0x05",
        "wait_group(1) is left out",
        "wgmma-accumulator-in-flight",
        follows=_follows("stage-released-early"),
        edits=(Edit(_PAIR, "        warpgroup.wait_group(1)\n", ""),),
    ),
    Fault(
        "P's registers are overwritten before PV completes",
        "0x05",
        "P is placed before wait_group(0)",
        "wgmma-operand-in-flight",
        edits=(
            Edit(
                _PAIR,
                "        warpgroup.wait_group(0)\n",
                "        self.place_p(scores)\n        warpgroup.wait_group(0)\n",
            ),
            Edit(
                _PAIR,
                "            rescale(operands.o, self.correction)\n        self.place_p(scores)\n",
                "            rescale(operands.o, self.correction)\n",
            ),
        ),
    ),
    Fault(
        "O is rescaled while PV is in flight",
        "0x05",
        "O moves to the new reference before wait_group(0)",
        "wgmma-accumulator-in-flight",
        edits=(
            Edit(
                _PAIR,
                "        warpgroup.wait_group(0)\n",
                "        rescale(operands.o, self.correction)\n        warpgroup.wait_group(0)\n",
            ),
            Edit(
                _PAIR,
                "        if const_expr(plan.rescale is Rescale.AFTER):\n"
                "            rescale(operands.o, self.correction)\n",
                "",
            ),
        ),
    ),
    Fault(
        "a stage is released before its product completes, with balanced counters",
        "0x05",
        "in the serial body K is released before wait_group(0)",
        "stage-released-early",
        edits=(
            Edit(
                "consumer.MmaWarpgroup.block",
                "        warpgroup.wait_group(0)\n        rings.k.release(ordinal)\n",
                "        rings.k.release(ordinal)\n        warpgroup.wait_group(0)\n",
            ),
        ),
        plan=SERIAL,
    ),
)

FAULTS = (*TRANSFERS, *PRODUCTS, *REGISTERS, *PIPELINE, *SCHEDULER, *OVERLAP)

ELSEWHERE = (
    Elsewhere(
        "the producer's tail is left out",
        "0x03",
        "the producer exits after its last copy",
        "dangling-arrival where CTAs of a cluster arrive on each other's barriers; our CTAs stand "
        "alone: the last arrivals of a CTA reach barriers that live as long as their senders",
        edits=(Edit("producer.Producer.run", "ring.wait_empty(ordinal + ahead)", "pass"),),
    ),
    Elsewhere(
        "the paper's timeline is taken for compiled fact",
        "0x04",
        "no fault of a kernel: a claim without an artifact",
        "the comparison of every shipped plan with its compiled kernel, and measured records",
    ),
    Elsewhere(
        "a helper waits where it was told not to",
        "0x05",
        "every product is waited for as soon as it is committed",
        "the order of the artifact's wgmma instructions: a build refuses it",
        differs="wgmma order",
        edits=(
            Edit(
                "fragments.issue",
                "    warpgroup.commit_group()\n",
                "    warpgroup.commit_group()\n    warpgroup.wait_group(0)\n",
            ),
        ),
    ),
    Elsewhere(
        "wait_group(0) stands where 1 was meant",
        "0x05",
        "softmax waits for both products",
        "the order of the artifact's wgmma instructions: a build refuses it",
        differs="wgmma order",
        edits=(Edit(_PAIR, "warpgroup.wait_group(1)", "warpgroup.wait_group(0)"),),
        also="Wait too early after async issue",
    ),
)
