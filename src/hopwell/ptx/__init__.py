"""PTX as CuTe DSL, Triton and nvcc emit it: text to syntax tree and back."""

from hopwell.errors import PtxSyntaxError
from hopwell.ptx.nodes import Module
from hopwell.ptx.parser import parse
from hopwell.ptx.printer import to_text

__all__ = ["Module", "PtxSyntaxError", "parse", "to_text"]
