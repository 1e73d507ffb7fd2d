"""The exponential moving average of a model's weights."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class AverageWeights(WeightAveraging):
    """Averages the trainable parameters; what is validated, kept as best and written at the end is the average.

    After step t, average += (1 - min(decay, (1 + t) / (10 + t))) (weights - average): TensorFlow's form, in which the
    first weights are soon forgotten. Buffers, such as batch norm's statistics, are the model's own.
    """

    def __init__(self, decay: float) -> None:
        @torch.no_grad()
        def average(averages: list[Tensor], weights: list[Tensor], steps: Tensor | int) -> None:
            kept = min(decay, (1 + int(steps)) / (10 + int(steps)))
            torch._foreach_lerp_(averages, weights, 1 - kept)

        super().__init__(use_buffers=False, multi_avg_fn=average)

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        super().setup(trainer, module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged.fill_(1)  # at 0, torch would forget the weights from before the first step

    def take(self, module: LightningModule) -> None:
        """Put the averages into the model; where training ended before this process began, nothing else does."""
        self._copy_average_to_current(module)
