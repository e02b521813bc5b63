"""This process's own memory: regions of it saved, restored, poisoned and given back (Linux, glibc)."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from frontdoor_cpu_sleep.pages import inner_pages

POISON = 0xFF
"""What lost weights are filled with: every floating-point format of PyTorch reads such bytes as NaN."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True)
class Region:
    """A piece of this process's memory.

    `address` and `size` are in bytes. `owner` is whatever keeps the memory allocated: as long as the region
    lives, so does it.
    """

    address: int
    size: int
    owner: object

    def view(self) -> memoryview:
        """The region's bytes, writable in place."""
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.address)).cast("B")


def total_bytes(regions: Iterable[Region]) -> int:
    """The regions' sizes together, in bytes."""
    return sum(region.size for region in regions)


def save(regions: Iterable[Region], file: BinaryIO) -> None:
    """Append the regions' content to `file`. Raises OSError when it can't be written in full."""
    for region in regions:
        file.write(region.view())
    file.flush()


def restore(regions: Iterable[Region], file: BinaryIO) -> None:
    """Fill the regions from where `file` stands, in the order they were saved.

    Raises OSError when the file can't be read or ends too early.
    """
    for region in regions:
        read = file.readinto(region.view())  # type: ignore[attr-defined]
        if read != region.size:
            raise OSError(f"the saved weights are cut short: {read} bytes of {region.size} could be read")


def poison(regions: Iterable[Region]) -> None:
    """Fill the regions with bytes that compute to NaN."""
    for region in regions:
        ctypes.memset(region.address, POISON, region.size)


def drop(regions: Iterable[Region]) -> None:
    """Give the whole pages inside the regions back to the kernel; read again, they are zero.

    That holds for private memory, which is what PyTorch allocates; shared memory would keep its content.
    Raises OSError when the kernel refuses (for example because the memory is locked).
    """
    for region in regions:
        start, length = inner_pages(region.address, region.size, mmap.PAGESIZE)
        if length and _libc.madvise(start, length, mmap.MADV_DONTNEED) != 0:
            problem = ctypes.get_errno()
            raise OSError(problem, f"madvise could not free {length} bytes: {os.strerror(problem)}")


def trim_heap() -> None:
    """Have the allocator give its free pages back, such as those left from loading the model."""
    _libc.malloc_trim(0)


def resident_bytes() -> int:
    """How much of this process is in RAM, in bytes."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * mmap.PAGESIZE
