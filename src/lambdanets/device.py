"""The device a model runs on, whether it can do what is asked, and what memory is free on it."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import torch

from lambdanets.errors import InputError


def best_device() -> torch.device:
    """The GPU if there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def has_fast_bfloat16() -> bool:
    """Whether the device is a GPU with bfloat16."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def check_precision(precision: str) -> None:
    """Raise InputError for float16 without a GPU, and for bfloat16 on machines that announce AMX and refuse its use."""
    if precision == "32-true" or torch.cuda.is_available():
        return
    if precision == "16-mixed":
        raise InputError("precision 16-mixed needs a GPU; on a processor choose bf16-mixed or 32-true")
    check_bfloat16("precision bf16-mixed", "precision 32-true")


def check_bfloat16(asked: str, instead: str) -> None:
    """Raise InputError where a bfloat16 product would end the process: on machines that announce AMX and refuse it."""
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], check=False).returncode == -signal.SIGILL:
        raise InputError(
            f"{asked} needs instructions (AMX) that this machine announces and refuses; "
            f"set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment, or use {instead}"
        )


def free_memory(device: torch.device) -> int:
    """Bytes of memory that may be taken: of the GPU, or of the machine or its container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = psutil.virtual_memory().available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free
