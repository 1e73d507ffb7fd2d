"""Makes timm's lambda_resnet26t small: fewer and narrower blocks, and images of 64 pixels instead of 256."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from timm.models import _registry, byoanet

NAME = "lambda_resnet26t"


@pytest.fixture(scope="module", autouse=True)
def small_lambda_resnet26t() -> Iterator[None]:
    """All networks named lambda_resnet26t are small in modules that import this fixture."""
    cfgs = _registry._model_pretrained_cfgs
    network = byoanet.model_cfgs[NAME]
    blocks = [replace(block, d=1) for block in network.blocks[:2]]
    with pytest.MonkeyPatch.context() as patch:
        small = replace(network, blocks=(*blocks, *network.blocks[2:]), width_factor=0.25)
        patch.setitem(byoanet.model_cfgs, NAME, small)
        patch.setitem(cfgs, NAME, replace(cfgs[NAME], input_size=(3, 64, 64), pool_size=(2, 2)))
        yield
