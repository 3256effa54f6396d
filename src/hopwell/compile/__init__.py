"""Compiling plans, keeping what was compiled, and proving what it is.

:func:`load` gives a callable kernel, :func:`find_or_build` its artifact alone; :mod:`.inspect` and
:mod:`.expect` put what a kernel holds beside what its plan demands. Only :mod:`.build` imports the
compiler.
"""

from hopwell.compile.artifact import Artifact, Manifest
from hopwell.compile.kernel import Kernel, find, find_or_build, load

__all__ = ["Artifact", "Kernel", "Manifest", "find", "find_or_build", "load"]
