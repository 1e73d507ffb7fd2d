"""The device of a model, by name or by default."""

import torch

from lambdanets.errors import InputError


def best_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_device(device: str | torch.device | None) -> torch.device:
    """Return the device with this name, by default `best_device()`. Raises InputError if it does not exist."""
    if device is None:
        return best_device()
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    available = ["cpu", *(["cuda"] if gpus else []), *gpus]
    if str(device) not in available:
        no_gpu = "" if gpus else "; PyTorch finds no GPU"
        raise InputError(f"device must be {' or '.join(available)}, got {str(device)!r}{no_gpu}")
    return torch.device(device)
