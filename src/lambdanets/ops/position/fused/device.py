"""Devices that support the fused kernels."""

import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache

import torch

_INTERPRETER = "Triton's interpreter"
TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class KernelDevice:
    """A device that supports the kernels. device: such as "cuda:0". capability: major and minor version."""

    device: str
    name: str
    capability: tuple[int, int]

    @property
    def is_interpreter(self) -> bool:
        """Whether Triton's interpreter runs the kernels."""
        return self.name == _INTERPRETER


def max_shared_memory(capability: tuple[int, int]) -> int:
    """Return the maximum shared memory of a program in bytes, for compute capability 8.0 and newer."""
    if capability[0] in (9, 10):
        return 227 << 10
    return (163 if capability in ((8, 0), (8, 7)) else 99) << 10


def kernel_device(device: str) -> KernelDevice | None:
    """Return the device, or None if it does not support the kernels (see `Fused.unsupported`).

    With TRITON_INTERPRET=1, which must be set before Triton is imported, Triton interprets the kernels on any device.
    The device is then treated like compute capability 9.0.
    """
    if not TRITON_INSTALLED:
        return None
    if os.environ.get("TRITON_INTERPRET") == "1":
        return KernelDevice("cpu" if device == "meta" else device, _INTERPRETER, (9, 0))
    parsed = torch.device(device)
    if parsed.type != "cuda":
        return None
    if parsed.index is None:
        return _cuda_device(torch.cuda.current_device()) if torch.cuda.is_available() else None
    return _cuda_device(parsed.index)


@lru_cache
def _cuda_device(index: int) -> KernelDevice | None:
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(index)
    if properties.major < 8:
        return None
    return KernelDevice(f"cuda:{index}", properties.name, (properties.major, properties.minor))
