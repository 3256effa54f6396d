"""Runs snippets on a Hopper GPU and keeps the answers as the record.

    python -m tests.emulator.snippets.gpu [--all] [--only TEXT] [--record FOLDER]

Answers that the record holds already, from the same GPU model, driver and assembler, are kept; with
``--all`` every snippet runs again. A snippet runs in a process that is replaced when one fails or
hangs, so that none takes the others with it. Kernels are assembled by ``ptxas`` where there is one,
by the driver otherwise.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pickle
import queue
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.emulator.snippets import record
from tests.emulator.snippets.driver import Device, DriverError
from tests.emulator.snippets.library import library
from tests.emulator.snippets.snippet import Snippet

#: Seconds that one snippet may take; the first of a process also waits for the driver.
LIMIT, FIRST_LIMIT = 10.0, 60.0
PROCESSES = 4


def assemble(snippet: Snippet, folder: Path) -> bytes:
    """The cubin of a snippet, or its text where no ptxas is found."""
    if shutil.which("ptxas") is None:
        return snippet.text.encode()
    source = Path(tempfile.mkstemp(".ptx", dir=folder)[1])
    source.write_text(snippet.text)
    cubin = source.with_suffix(".cubin")
    done = subprocess.run(
        ["ptxas", "-arch=sm_90a", str(source), "-o", str(cubin)], capture_output=True, text=True
    )
    if done.returncode:
        raise DriverError(f"{snippet.name}: {done.stderr.strip()}")
    return cubin.read_bytes()


def child(folder: Path) -> None:
    """Runs the snippets whose numbers come in on standard input; answers a line for each."""
    device = Device()
    snippets = list(library().values())
    for line in sys.stdin:
        number = int(line)
        image = (folder / f"{number}.image").read_bytes()
        answer = device.run(snippets[number], image)
        (folder / f"{number}.answer").write_bytes(pickle.dumps(answer))
        print("done", flush=True)


class Worker:
    """A child process, started anew after each failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, number: int) -> str | None:
        """Runs one snippet. The error that it ended with, or None."""
        limit = LIMIT
        if self.process is None:
            limit = FIRST_LIMIT
            command = [sys.executable, "-m", "tests.emulator.snippets.gpu", "--child"]
            self.process = subprocess.Popen(
                [*command, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(f"{number}\n".encode())
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], limit)
        if ready and process.stdout.readline() == b"done\n":
            return None
        self.close()
        if not ready:
            return f"no answer after {limit:g} s"
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "the process ended"

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_all(names: list[str], folder: Path) -> dict[str, record.Answer]:
    """Runs snippets by name, PROCESSES of them at a time; files go to ``folder``."""
    numbers = {name: number for number, name in enumerate(library())}
    errors: dict[str, str | None] = {}

    def prepare(name: str) -> None:
        try:
            image = assemble(library()[name], folder)
        except DriverError as error:
            errors[name] = str(error)
        else:
            (folder / f"{numbers[name]}.image").write_bytes(image)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(prepare, names))
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        if name not in errors:
            waiting.put(name)

    def work() -> None:
        worker = Worker(folder)
        try:
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                errors[name] = worker.run(numbers[name])
        finally:
            worker.close()

    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        for future in [pool.submit(work) for _ in range(PROCESSES)]:
            future.result()
    answers = {}
    for name in names:
        values, maps = {}, {}
        if errors[name] is None:
            values, maps = pickle.loads((folder / f"{numbers[name]}.answer").read_bytes())
        answers[name] = record.answer(library()[name], errors[name], values, maps)
    return answers


def current(folder: Path, here: Mapping[str, str]) -> dict[str, record.Answer]:
    """The answers of a record that belong to today's snippets and to this machine."""
    known = record.read(folder)
    if known is None or known.machine != here:
        return {}
    return {
        name: given
        for name, given in known.answers.items()
        if name in library() and given.fingerprint == library()[name].fingerprint
    }


def machine() -> dict[str, str]:
    """GPU and driver, and what assembled the kernels."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, driver = subprocess.check_output(query, text=True).strip().split(", ")
    assembler = "driver"
    if shutil.which("ptxas"):
        version = subprocess.check_output(["ptxas", "--version"], text=True).strip().splitlines()
        assembler = f"ptxas {version[-1]}"
    return {"gpu": name, "driver": driver, "assembler": assembler}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="run also what has been answered")
    parser.add_argument("--only", default="", help="run snippets whose name contains this text")
    parser.add_argument("--record", type=Path, default=record.FOLDER)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
        return 0
    started = time.monotonic()
    here = machine()
    kept = {} if options.all else current(options.record, here)
    names = [name for name in library() if options.only in name and name not in kept]
    with tempfile.TemporaryDirectory() as temporary:
        answers = {**kept, **run_all(names, Path(temporary))}
    size = record.write(options.record, here, {n: answers[n] for n in library() if n in answers})
    unexpected = 0
    for name in names:
        error, refused = answers[name].error, library()[name].refused
        if error is not None or refused:
            expected = bool(refused) and refused in (error or "")
            unexpected += not expected
            print(f"{name}: {error} ({'as' if expected else 'not'} expected)")
    seconds = time.monotonic() - started
    print(
        f"{len(names)} snippets ran in {seconds:.1f} s, {unexpected} not as expected; "
        f"{len(kept)} were kept; {size} bytes"
    )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
