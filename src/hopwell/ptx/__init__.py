"""PTX as CuTe DSL, Triton and nvcc emit it: text to syntax tree and back."""

from hopwell.errors import PtxSyntaxError
from hopwell.ptx.nodes import Module
from hopwell.ptx.parser import parse

__all__ = ["Module", "PtxSyntaxError", "parse"]
