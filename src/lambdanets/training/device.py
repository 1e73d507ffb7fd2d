"""The device a model runs on, and whether it can do what is asked."""

import signal
import subprocess
import sys

import torch

from lambdanets.errors import InputError
from lambdanets.training.recipe import Precision


def best_device() -> torch.device:
    """The GPU if there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_precision(precision: Precision) -> None:
    """Raise InputError for float16 without a GPU, and for bfloat16 on machines that announce AMX and refuse its use."""
    if precision == "32-true" or torch.cuda.is_available():
        return
    if precision == "16-mixed":
        raise InputError("precision 16-mixed needs a GPU; on a processor choose bf16-mixed or 32-true")
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], check=False).returncode == -signal.SIGILL:
        raise InputError(
            "precision bf16-mixed needs instructions (AMX) that this machine announces and refuses; "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment, or use precision 32-true"
        )
