"""Kernels that ship inside the package: ``hopwell/kernels/<request>/`` beside the sources."""

from __future__ import annotations

from pathlib import Path

import hopwell
from hopwell.compile import artifact as files
from hopwell.compile.artifact import Artifact, CorruptArtifact

KERNELS = Path(hopwell.__file__).with_name("kernels")


def find(request: str) -> Artifact | None:
    """The shipped artifact of a request, verified; None when there is none that fits."""
    directory = KERNELS / request
    if not directory.is_dir():
        return None
    try:
        return files.read(directory, request)
    except CorruptArtifact:
        return None
