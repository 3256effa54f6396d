"""Puts compiled kernels into a wheel: ``python -m hopwell.compile.wheel dist/hopwell-*.whl``.

Takes the pure wheel that the build back end made, compiles every shipped plan (or takes it from
the cache), adds the artifacts as ``hopwell/kernels/<request>/`` and writes a platform wheel beside
it. Whoever installs that wheel compiles nothing. Needs ``hopwell[compile]`` and no GPU.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import multiprocessing
import re
import sys
import zipfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hopwell.compile import artifact as files
from hopwell.compile import key as keys
from hopwell.compile.artifact import Artifact
from hopwell.compile.kernel import find_or_build
from hopwell.hopper.plan import shipped_forward_plans

#: The oldest glibc that PyTorch's own wheels run on.
_OLDEST_GLIBC = 28
#: Zip entries carry no time of day, so that equal contents give equal wheels.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def platform_tag(libraries: Iterable[bytes]) -> str:
    """``manylinux_2_N_<machine>``: the newest glibc 2.N that any of the libraries asks for."""
    needed = [
        int(minor)
        for library in libraries
        for minor in re.findall(rb"GLIBC_2\.(\d+)(?:\.\d+)?\0", library)
    ]
    return f"manylinux_2_{max([_OLDEST_GLIBC, *needed])}_{keys.host_abi()['machine']}"


def add_kernels(pure: Path, artifacts: Iterable[Artifact]) -> Path:
    """Writes the platform wheel beside ``pure`` and returns its path.

    ``pure`` is a ``py3-none-any`` wheel of Hopwell, whose sources must be the ones that the
    artifacts were compiled from. Raises ValueError when they are not.
    """
    found = list(artifacts)
    with zipfile.ZipFile(pure) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    for artifact in found:
        _check_sources(artifact, contents)
        for name in (files.LIBRARY, files.PTX, files.CUBIN, files.MANIFEST):
            target = f"hopwell/kernels/{artifact.manifest.request}/{name}"
            contents[target] = (artifact.directory / name).read_bytes()
    tag = "py3-none-" + platform_tag(a.library.read_bytes() for a in found)
    info = next(name for name in contents if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name))
    text = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", contents[info].decode())
    contents[info] = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").encode()
    record = info.replace("WHEEL", "RECORD")
    contents[record] = _record(contents, record)
    wheel = pure.with_name(pure.name.replace("py3-none-any", tag))
    if wheel == pure:
        raise ValueError(f"expected a py3-none-any wheel, got {pure.name}")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def _check_sources(artifact: Artifact, contents: dict[str, bytes]) -> None:
    hashes = {name: keys.sha256(data) for name, data in contents.items()}
    for source, expected in artifact.manifest.sources.items():
        base = source.replace(".", "/")
        if expected not in [hashes.get(n) for n in (source, f"{base}.py", f"{base}/__init__.py")]:
            raise ValueError(f"{source} in the wheel is not what {artifact.directory} was built of")


def _record(contents: dict[str, bytes], record: str) -> bytes:
    """The wheel's list of files with their hashes (PyPA binary distribution format)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, data in sorted(contents.items()):
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((record, "", ""))
    return out.getvalue().encode()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hopwell.compile.wheel", description=__doc__)
    parser.add_argument("wheel", type=Path, help="the pure wheel")
    parser.add_argument("--jobs", type=int, default=None, help="plans compiled at once")
    parser.add_argument("--match", default="", help="only plans whose name contains this")
    options = parser.parse_args(arguments)
    plans = [plan for plan in shipped_forward_plans() if options.match in plan.name]
    if not plans:
        parser.error(f"no shipped plan has {options.match} in its name")
    artifacts = []
    # Fresh interpreters: the compiler's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for artifact, source in pool.map(find_or_build, plans):
            print(f"{source:9} {artifact.manifest.plan_name}", file=sys.stderr)
            artifacts.append(artifact)
    target = add_kernels(options.wheel, artifacts)
    print(f"{target}: {len(artifacts)} kernels, {target.stat().st_size / 2**20:.2f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
