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
    """A device that supports the kernels. device: as in torch, "cuda:0"; capability: major and minor."""

    device: str
    name: str
    capability: tuple[int, int]

    @property
    def is_interpreter(self) -> bool:
        """Whether Triton interprets the kernels instead of compiling them."""
        return self.name == _INTERPRETER


def max_shared_memory(capability: tuple[int, int]) -> int:
    """Maximum shared memory of a program in bytes, for compute capabilities from 8.0."""
    if capability[0] in (9, 10):
        return 227 << 10
    return (163 if capability in ((8, 0), (8, 7)) else 99) << 10


def kernel_device(device: str) -> KernelDevice | None:
    """The device, or None if it does not support the kernels: see `Fused.limits`.

    With TRITON_INTERPRET=1, which must be set before Triton is imported, Triton interprets the kernels on any device,
    which is treated as one of compute capability 9.0.
    """
    if not TRITON_INSTALLED:
        return None
    if os.environ.get("TRITON_INTERPRET") == "1":
        return KernelDevice("cpu" if device == "meta" else device, _INTERPRETER, (9, 0))
    kind = torch.device(device)
    if kind.type != "cuda":
        return None
    if kind.index is None:
        return _cuda_device(torch.cuda.current_device()) if torch.cuda.is_available() else None
    return _cuda_device(kind.index)


@lru_cache
def _cuda_device(index: int) -> KernelDevice | None:
    if torch.version.hip is not None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(index)
    if properties.major < 8:
        return None
    return KernelDevice(f"cuda:{index}", properties.name, (properties.major, properties.minor))
