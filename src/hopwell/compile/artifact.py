"""An artifact: one directory per compiled plan, and the manifest that says what is in it.

``kernel.so``      the exported kernel with its cubin inside, linked with our runtime
``kernel.ptx``     the PTX it was assembled from
``kernel.cubin``   the same code as a cubin, for the inspector
``manifest.json``  plan, hashes, toolchain, sources, resources
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

import json
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from hopwell.compile.key import SCHEMA, sha256
from hopwell.decode import decode

LIBRARY = "kernel.so"
PTX = "kernel.ptx"
CUBIN = "kernel.cubin"
MANIFEST = "manifest.json"


class CorruptArtifact(Exception):
    """An artifact directory is incomplete or is not what its manifest says. Internal: a miss."""


class Manifest(NamedTuple):
    """What an artifact holds and where it comes from. Hashes are sha256, times are seconds."""

    schema: int
    plan_kind: str
    plan: dict[str, Any]
    plan_name: str
    request: str
    key: str
    export_symbol: str
    kernel_symbol: str
    #: Over the PTX without comments, line information and debug sections: the artifact's identity.
    ptx_sha256: str
    #: Over the machine code alone.
    sass_sha256: str
    cubin_sha256: str
    so_sha256: str
    host: dict[str, str]
    toolchain: dict[str, str]
    assembler: dict[str, str]
    sources: dict[str, str]
    dependencies: dict[str, str]
    assembler_log: str
    compile_seconds: float
    #: Dynamic shared memory of every launch, bytes; None when the host code computes it.
    shared_launched: int | None
    #: What the inspector found (:class:`hopwell.compile.inspect.Actual`), for readers.
    resources: dict[str, Any]

    @property
    def artifact_hash(self) -> str:
        return self.ptx_sha256

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Artifact(NamedTuple):
    """A directory whose manifest was read and whose library was verified."""

    directory: Path
    manifest: Manifest

    @property
    def library(self) -> Path:
        return self.directory / LIBRARY

    def ptx(self) -> str:
        return (self.directory / PTX).read_text()

    def cubin(self) -> bytes:
        return (self.directory / CUBIN).read_bytes()


def read(directory: Path, request: str, key: str | None = None) -> Artifact:
    """Reads and verifies an artifact directory.

    The library, which is about to become code of this process, must have the hash that the
    manifest gives, and the manifest must be for this request (and key, when one is known).
    Raises :class:`CorruptArtifact` otherwise, also when a file is missing.
    """
    try:
        manifest = decode(Manifest, (directory / MANIFEST).read_text("utf-8"))
        library = (directory / LIBRARY).read_bytes()
    except (OSError, ValueError) as error:
        raise CorruptArtifact(f"{directory}: {error}") from error
    if manifest.schema != SCHEMA:
        raise CorruptArtifact(f"{directory}: of schema {manifest.schema}, not {SCHEMA}")
    if manifest.request != request or (key is not None and manifest.key != key):
        raise CorruptArtifact(f"{directory}: made for another request")
    if sha256(library) != manifest.so_sha256:
        raise CorruptArtifact(f"{directory}: {LIBRARY} does not have its hash")
    return Artifact(directory, manifest)


def verify(artifact: Artifact) -> None:
    """Checks every file against the manifest. Raises :class:`CorruptArtifact`."""
    try:
        ptx, cubin = artifact.ptx(), artifact.cubin()
    except (OSError, ValueError) as error:
        raise CorruptArtifact(f"{artifact.directory}: {error}") from error
    manifest = artifact.manifest
    if ptx_hash(ptx) != manifest.ptx_sha256:
        raise CorruptArtifact(f"{artifact.directory}: {PTX} does not have its hash")
    if sha256(cubin) != manifest.cubin_sha256:
        raise CorruptArtifact(f"{artifact.directory}: {CUBIN} does not have its hash")


def write(directory: Path, manifest: Manifest, ptx: str, cubin: bytes) -> Artifact:
    """Adds PTX, cubin and manifest to a directory that holds the library already."""
    (directory / PTX).write_text(ptx)
    (directory / CUBIN).write_bytes(cubin)
    text = json.dumps(manifest.to_json(), indent=1, sort_keys=True)
    (directory / MANIFEST).write_text(text + "\n")
    return Artifact(directory, manifest)


# -- hashes --------------------------------------------------------------------------------

# Texts, not compiled: a process that only runs kernels never needs them.
_COMMENT = r"(?s://[^\n]*|/\*.*?\*/)"
_LINE_INFO = r"(?m:^\s*\.(?:loc|file)\b[^\n]*$)"
_DEBUG_SECTION = r"(?m:^\s*\.section\s+\.debug[^{]*\{[^}]*\})"


def ptx_hash(ptx: str) -> str:
    """sha256 of PTX without comments, line information, debug sections and blank space at ends."""
    for pattern in (_COMMENT, _LINE_INFO, _DEBUG_SECTION):
        ptx = re.sub(pattern, "", ptx)
    lines = (line.strip() for line in ptx.splitlines())
    return sha256("\n".join(line for line in lines if line).encode())


class Section(NamedTuple):
    """A section of an ELF file; ``size`` is in memory, also where the file holds nothing of it."""

    name: str
    size: int
    data: bytes


def elf_sections(image: bytes) -> list[Section]:
    """Every section of a 64-bit little-endian ELF file (a cubin is one).

    Raises ValueError when the image is not one, or not all of one.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF image")
    try:
        (table,) = struct.unpack_from("<Q", image, 0x28)
        size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
        # name, type, flags, address, offset, size
        headers = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
        names = image[headers[names_index][4] :]
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"not a whole ELF image: {error}") from error
    found = []
    for name, kind, _, _, offset, length in headers:
        stored = 0 if kind == 8 else length  # 8: occupies no space in the file
        data = image[offset : offset + stored]
        if len(data) != stored:
            raise ValueError(f"not a whole ELF image: {len(data)} of {stored} bytes of a section")
        title = names[name : names.index(b"\0", name)].decode()
        found.append(Section(title, length, data))
    return found


def sass_hash(cubin: bytes) -> str:
    """sha256 of the machine code of every kernel of a cubin."""
    code = sorted(s for s in elf_sections(cubin) if s.name.startswith(".text"))
    return sha256(b"".join(section.data for section in code))
