"""The device that captured programs believe in, in one place: an H100 SXM.

CUDA C++ Programming Guide, "Compute Capabilities" (9.0), and NVIDIA's H100 data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What programs ask of a GPU before they launch."""

    name: str = "Hopwell emulator (sm_90)"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * 1024
    shared_memory_per_block_optin: int = 227 * 1024
    shared_memory_per_multiprocessor: int = 228 * 1024
    #: Bytes.
    L2_cache_size: int = 50 * 1024 * 1024
    total_memory: int = 80 * 10**9
    clock_rate: int = 1_980_000

    @property
    def architecture(self) -> str:
        """The target that kernels are compiled for: all of Hopper's instructions."""
        return f"sm_{self.major}{self.minor}a"

    @property
    def attributes(self) -> dict[int, int]:
        """CUDA's ``cudaDeviceAttr`` numbers, and values."""
        return {
            1: self.max_threads_per_block,
            2: 1024,  # block x
            3: 1024,
            4: 64,
            5: 2**31 - 1,  # grid x
            6: 65535,
            7: 65535,
            8: self.shared_memory_per_block,
            10: self.warp_size,
            12: self.regs_per_multiprocessor,
            13: self.clock_rate,
            16: self.multi_processor_count,
            38: self.L2_cache_size,
            39: self.max_threads_per_multi_processor,
            75: self.major,
            76: self.minor,
            81: self.shared_memory_per_multiprocessor,
            82: self.regs_per_multiprocessor,
            95: 1,  # cooperative launches
            97: self.shared_memory_per_block_optin,
            106: 32,  # blocks of a multiprocessor
        }


HOPPER = Device()
