"""Run the example kernels under compute-sanitizer on a GPU and keep what it says as a record.

    PYTHONPATH=src:. python scripts/sanitize_examples.py --record FOLDER

docs/emulator.md shows its answers beside the emulator's. Kernels go through the CUDA driver
alone; a kernel and a tool that hang are cut off and recorded as such.
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.emulator.snippets.driver import Device
from tests.emulator.snippets.snippet import Buffer, Comparison, Scalar, Snippet

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SECONDS = 50


def example(name: str) -> Snippet:
    """An example kernel with its arguments."""
    text = (EXAMPLES / f"{name}.ptx").read_text().partition(".address_size 64")[2]
    words = np.arange(6 * 128, dtype=np.uint32)
    out = Buffer("out", lambda: np.full(128, 0xA5A5A5A5, np.uint32), Comparison())
    arguments: tuple[Buffer | Scalar, ...] = (out,)
    if name == "raw_bulk_loop":
        arguments = (Buffer("source", lambda: words), out, Scalar("tiles", np.uint32(6)))
    source = text.replace(f".entry {name}(", f".entry {Snippet.kernel}(")
    threads = 160 if name == "raw_bulk_loop" else 128
    return Snippet(f"example/{name}", source, arguments, block=(threads, 1, 1))


EXPECTED = {
    "raw_bulk_loop": np.arange(6 * 128, dtype=np.uint32).reshape(6, 128).sum(0, dtype=np.uint32),
    "missing_proxy_fence": np.arange(128, dtype=np.uint32),
}


def run(name: str) -> int:
    """Run one example; 0 when its output is right."""
    snippet = example(name)
    outputs, _ = Device().run(snippet, snippet.text.encode())
    right = bool((outputs["out"] == EXPECTED[name]).all())
    print("output right" if right else f"output wrong: {outputs['out'][:8]}")
    return 0 if right else 3


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def sanitized(name: str, tool: str) -> dict[str, object]:
    """What one tool says about one example."""
    command = ["compute-sanitizer", "--tool", tool, sys.executable, __file__, "--run", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"example": name, "tool": tool, "summary": f"cut off after {SECONDS} s"}
    text = done.stdout + done.stderr
    summary = re.findall(r"SUMMARY: (.*)", text)
    kinds = sorted(set(re.findall(r"(?:Error|Warning|Race|hazard)[^\n]*", text)))
    return {
        "example": name,
        "tool": tool,
        "summary": summary[-1] if summary else text[-400:],
        "output": "right" if "output right" in text else "wrong or none",
        "kinds": kinds[:8],
        "status": done.returncode,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", choices=sorted(EXPECTED), help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help="folder for the record")
    options = parser.parse_args()
    if options.run:
        return run(options.run)
    rows = [sanitized(name, tool) for name in sorted(EXPECTED) for tool in TOOLS]
    record = {
        "schema": "hopwell.sanitizer/1",
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": _output(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ),
        "compute_sanitizer": _output("compute-sanitizer", "--version").splitlines()[-1],
        "examples": {
            name: hashlib.sha256((EXAMPLES / f"{name}.ptx").read_bytes()).hexdigest()
            for name in sorted(EXPECTED)
        },
        "rows": rows,
    }
    for row in rows:
        print(row["example"], row["tool"], "|", row["summary"])
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        path = options.record / "sanitizer.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
