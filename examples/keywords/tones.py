"""Synthetic keywords: a keyword is a sequence of three tones, in noise and at a random time."""

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LENGTH, TONE_LENGTH = 800, 160  # samples of a recording and of a tone, at 8,000 per second
LOW, HIGH = 500.0, 1100.0  # Hz
KEYWORDS = {
    "rise": (LOW, LOW, HIGH),
    "fall": (HIGH, LOW, LOW),
    "peak": (LOW, HIGH, LOW),
    "dip": (HIGH, LOW, HIGH),
}


@dataclass(frozen=True)
class Recordings:
    """`count` recordings, which depend only on the seed and their index. Your own class reads files instead."""

    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        """The name of a recording in messages."""
        return f"recording {index}"

    def load(self, index: int) -> tuple[Tensor, int]:
        """Return a recording, float32 (1, LENGTH), and the number of its keyword."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % len(KEYWORDS)
        start, shift = torch.randint(LENGTH - 3 * TONE_LENGTH, (2,), generator=generator).tolist()
        seconds = torch.arange(TONE_LENGTH) / 8000
        tones = [torch.sin(2 * torch.pi * hertz * (seconds + shift)) for hertz in [*KEYWORDS.values()][label]]
        recording = 0.3 * torch.randn(1, LENGTH, generator=generator)
        recording[0, start : start + 3 * TONE_LENGTH] += torch.cat(tones)
        return recording, label


def read_wav(path: Path) -> Tensor:
    """Read the first channel of a file of 16-bit samples, as float32 (1, length) in [-1, 1]."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise wave.Error(f"samples must have 16 bits, got {8 * file.getsampwidth()}")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
    return torch.from_numpy(samples[:, 0].astype(np.float32) / 32768)[None]
