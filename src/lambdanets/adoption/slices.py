"""The layer that replaces those of LambdaUNet, whose batches have the slices of volumes."""

from typing import Any

from torch import Tensor

from lambdanets.layers import LambdaLayer3d
from lambdanets.layers.base import LambdaInputs


class SlicesLambdaLayer(LambdaLayer3d):
    """LambdaLayer3d on maps (b slices, dim, H, W), of which `slices` in a row are one volume."""

    def __init__(self, *args: Any, slices: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.slices = slices

    def prepare(self, x: Tensor, mask: Tensor | None = None) -> LambdaInputs:
        if x.shape[0] % self.slices:
            raise ValueError(f"x must have a multiple of {self.slices} slices, got {x.shape[0]}")
        volumes = x.unflatten(0, (-1, self.slices)).transpose(1, 2)
        masks = None if mask is None else mask.unflatten(0, (-1, self.slices))
        return super().prepare(volumes, masks)

    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        return super().finish(output, inputs).transpose(1, 2).flatten(0, 1)
