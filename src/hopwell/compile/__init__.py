"""Compiling plans, keeping what was compiled, and proving what it is."""

from hopwell.compile.kernel import Kernel, load

__all__ = ["Kernel", "load"]
