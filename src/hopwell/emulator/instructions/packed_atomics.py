"""Atomics on 16-bit floating-point values, alone or packed in pairs (PTX ISA 9.7.13.13)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hopwell.emulator.copy_layout import reduce


def combine_packed(operation: str, type_name: str) -> Callable[[Any, Any], Any]:
    """The function of old and new bits that an atomic performs; halves of a pair apart.

    Additions round to nearest even and keep subnormals (``.noftz``).
    """
    element = type_name.removesuffix("x2")
    bits = np.uint32 if type_name.endswith("x2") else np.uint16
    carrier = np.float16 if element == "f16" else np.uint16

    def combine(old: Any, new: Any) -> Any:
        before = np.array([old], bits).view(carrier)
        after = reduce(operation, element, before, np.array([new], bits).view(carrier))
        return after.view(bits)[0]

    return combine
