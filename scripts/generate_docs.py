"""Write the generated parts of README.md and docs/, or check that they are current.

    python scripts/generate_docs.py [--check]

A generated part lies between ``<!-- generated: NAME -->`` and ``<!-- end generated -->``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hopwell.hopper.plan import shipped_forward_plans

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(.*?)(<!-- end generated -->)", re.S)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def plans() -> str:
    """One row per bucket and mask: bf16 and fp16 differ in nothing that is shown."""
    return table(
        (
            "d, d_v",
            "mask",
            "tile",
            "stages",
            "MMA warpgroups",
            "turns",
            "rescale",
            "order",
            "shared bytes",
            "blocks per SM",
        ),
        [
            (
                f"{plan.head_dim}, {plan.head_dim_v}",
                "causal" if plan.causal else "full",
                f"{plan.tile_m} × {plan.tile_n}",
                plan.stages,
                plan.mma_warpgroups,
                "yes" if plan.ping_pong else "no",
                plan.rescale.value,
                plan.tile_order.value.replace("_", " "),
                f"{plan.shared_bytes:,}",
                plan.ctas_per_sm,
            )
            for plan in shipped_forward_plans()
            if plan.dtype == "bfloat16"
        ],
    )


PARTS: dict[str, Callable[[], str]] = {"plans": plans}


def regenerated(text: str) -> str:
    return PART.sub(lambda m: m[1] + PARTS[m["name"]]() + m[4], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    check = parser.parse_args().check
    stale = []
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        new = regenerated(text)
        if new == text:
            continue
        stale.append(str(document.relative_to(ROOT)))
        if not check:
            document.write_text(new, "utf-8")
    if stale:
        print(f"{'stale' if check else 'wrote'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
