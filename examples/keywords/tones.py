"""Synthetic keywords: a keyword is a sequence of three tones, in noise and at a random time."""

from dataclasses import dataclass

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
