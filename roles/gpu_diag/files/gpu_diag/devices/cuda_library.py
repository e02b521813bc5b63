"""The CUDA runtime library itself, by ctypes. Source: the CUDA Runtime API reference, 12 and 13."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from gpu_diag.devices.protocol import DeviceLostError, NoDevicesError

LIBRARY_VARIABLE = "GPU_DIAG_CUDART"
HANDLE_BYTES = 64
_NAMES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12")
# cudaIpcMemLazyEnablePeerAccess: the only flag that opening takes.
_ENABLE_PEER_ACCESS = 1
# cudaMemcpyDefault: the direction is told by the addresses.
_BY_ADDRESS = 4


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t, which the library takes by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaLibrary:
    """Calls functions of the library; DeviceLostError with its own words where one fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.functions = library
        library.cudaGetErrorString.restype = ctypes.c_char_p

    @property
    def path(self) -> str:
        """What the library was loaded as: another process loads the same."""
        return str(self.functions._name)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its name. Raises DeviceLostError."""
        status = getattr(self.functions, name)(*arguments)
        if status:
            text = self.functions.cudaGetErrorString(status)
            raise DeviceLostError(f"{name} says {status}: {text.decode() if text else 'no text'}")

    def export(self, pointer: int) -> bytes:
        """A handle by which another process can open this memory. Raises DeviceLostError."""
        handle = _Handle()
        self.call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        """The address of another process' memory, from the device in use. Raises DeviceLostError."""
        pointer = ctypes.c_void_p()
        by_value = _Handle((ctypes.c_ubyte * HANDLE_BYTES)(*handle))
        self.call("cudaIpcOpenMemHandle", ctypes.byref(pointer), by_value, ctypes.c_uint(_ENABLE_PEER_ACCESS))
        return int(pointer.value or 0)

    def copy(self, target: int, source: int, count: int, stream: ctypes.c_void_p) -> None:
        """Start a copy between addresses, in bytes. Raises DeviceLostError."""
        addresses = (ctypes.c_void_p(target), ctypes.c_void_p(source))
        self.call("cudaMemcpyAsync", *addresses, ctypes.c_size_t(count), _BY_ADDRESS, stream)


def load_library(name: str | None = None) -> CudaLibrary:
    """The library of that name, else the one that the environment names, else the one that is found.

    Raises NoDevicesError where there is none.
    """
    for candidate in [name] if name else _candidates():
        try:
            return CudaLibrary(ctypes.CDLL(candidate))
        except OSError:
            continue
    raise NoDevicesError(
        f"the CUDA runtime library (libcudart) was not found: name it in {LIBRARY_VARIABLE}, or run this "
        "inside the engine's CUDA image"
    )


def _candidates() -> Iterator[str]:
    given = os.environ.get(LIBRARY_VARIABLE)
    if given:
        yield given
        return
    yield from _NAMES
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        yield from (str(path) for path in sorted(Path(folder).glob("*/lib/libcudart.so*")))
