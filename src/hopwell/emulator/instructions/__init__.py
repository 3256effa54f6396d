"""One module per family of instructions; importing this package registers all of them."""

from hopwell.emulator.instructions import (  # noqa: F401
    barriers,
    bulk,
    compare,
    control,
    convert,
    cp_async,
    floating,
    half,
    integer,
    logic,
    matrix,
    memory,
    move,
    remote,
    tensormap,
    wgmma,
)
