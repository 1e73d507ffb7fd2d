"""FLOP counts of networks on the meta device, counted as in the paper."""

import math
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.inference.predictor import evaluation_mode
from lambdanets.ops.position.torch_compile import interaction_flops


def count_flops(model: nn.Module, image_size: int, *, single_application: bool = False) -> int:
    """Return the FLOPs of a forward pass for one square image, 2 per multiply-add (Sec. F.3 of the paper).

    PyTorch counts convolutions, matrix products and the operator of the position interaction, but not biases, norms,
    activations, pooling and additions. The model must be on the meta device, where it runs once.

    Args:
        image_size: side of the image, in pixels.
        single_application: if True, count one application of the sum of the content and the position lambda, as this
            package computes it. If False, the default, count one application of each, as in Fig. 3 of the paper.
    """

    def interaction(*shapes: Any, **_: Any) -> int:
        queries, _, values, content = shapes[1:5]
        applications = int(content is not None and not single_application)  # in addition to that of the sum
        return interaction_flops(*shapes) + 2 * applications * math.prod(queries) * values[2]

    formulas = {torch.ops.lambdanets.position_interaction: interaction}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, torch.no_grad(), evaluation_mode(model):
        model(torch.empty(1, 3, image_size, image_size, device="meta"))
    return counter.get_total_flops()
