"""Launches of other people's kernels, received on a machine without a GPU."""

from hopwell.emulator.capture.launch import Buffer, Launch

__all__ = ["Buffer", "Launch"]
