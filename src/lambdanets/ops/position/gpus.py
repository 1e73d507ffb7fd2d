"""GPU specifications for predicting run times without measurements by `lambdanets calibrate`.

Sources: NVIDIA's data sheets and architecture papers, for dense matrix products. These do not contain the L2 bandwidth:
compute capabilities 8.0 and 9.0 have 64 bytes per clock and SM, and published measurements reach about 60% of that.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class GpuSpec:
    """Peak rates of a GPU.

    clock: boost clock, in Hz. float32_flops, bfloat16_flops: FLOP/s, two FLOPs per multiply-add.
    memory_bandwidth, l2_bandwidth: bytes per second.
    mma_sync_fraction: fraction of the bfloat16 rate that mma.sync reaches; from compute capability 9.0 on, only
    warpgroup instructions reach the full rate.
    """

    num_sms: int
    clock: float
    float32_flops: float
    bfloat16_flops: float
    memory_bandwidth: float
    l2_bandwidth: float
    mma_sync_fraction: float = 1.0


# Keys are parts of device names that no digit follows ("A100" is not in "RTX A1000"); the first match is used.
SPECIFICATIONS = {
    "B200": GpuSpec(148, 1.85e9, 75e12, 2250e12, 8.0e12, 10e12, 0.5),
    "H200": GpuSpec(132, 1.755e9, 67e12, 989e12, 4.8e12, 5.5e12, 0.62),
    "H100 PCIe": GpuSpec(114, 1.62e9, 48e12, 756e12, 2.0e12, 4.5e12, 0.62),
    "H100": GpuSpec(132, 1.755e9, 67e12, 989e12, 3.35e12, 5.5e12, 0.62),
    "A100": GpuSpec(108, 1.41e9, 19.5e12, 312e12, 1.55e12, 4.5e12),
    "L40S": GpuSpec(142, 2.52e9, 91.6e12, 362e12, 0.864e12, 4.5e12),
    "RTX 3090": GpuSpec(82, 1.70e9, 35.6e12, 71e12, 0.936e12, 2.5e12),
    "RTX 4090": GpuSpec(128, 2.52e9, 82.6e12, 165e12, 1.008e12, 4.5e12),
    "T4": GpuSpec(40, 1.59e9, 8.1e12, 8.1e12, 0.32e12, 1.3e12),
}
# Keys are compute capabilities, for devices whose name does not match.
_BY_CAPABILITY = {(7, 5): "T4", (8, 0): "A100", (8, 6): "RTX 3090", (8, 7): "RTX 3090", (8, 9): "RTX 4090"}
_BY_CAPABILITY |= {(9, 0): "H100", (10, 0): "B200", (10, 3): "B200", (12, 0): "RTX 4090"}


def find_gpu_spec(name: str, capability: tuple[int, int] = (9, 0)) -> GpuSpec:
    """Find the specification by device name, else by compute capability; the default is the H100."""
    spec = next((gpu for key, gpu in SPECIFICATIONS.items() if re.search(rf"{key}(?!\d)", name)), None)
    return spec or SPECIFICATIONS[_BY_CAPABILITY.get(capability, "H100")]


@lru_cache
def device_gpu_spec(device: str) -> GpuSpec:
    """Return the specification of a device such as "cuda:0", or that of the H100 if there is no GPU."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return SPECIFICATIONS["H100"]
    return find_gpu_spec(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
