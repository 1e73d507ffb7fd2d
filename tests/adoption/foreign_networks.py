"""The networks of d-li14 and leaderj1001, with the names of their modules."""

import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from adoption.foreign_layers import DLi14, Leaderj1001


def dli14_resnet(blocks):
    """A ResNet whose 3x3 convolutions are all replaced by lambda layers with a scope of 23 x 23."""
    network = ResNet(Bottleneck, blocks, num_classes=10)
    for block in network.modules():
        if isinstance(block, Bottleneck):
            block.conv2 = DLi14(block.conv2.in_channels, stride=block.stride)
    return network


class _Leaderj1001Block(nn.Module):
    def __init__(self, dim, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(dim, width, 1, bias=False), nn.BatchNorm2d(width)
        pool = [nn.AvgPool2d((3, 3), stride, (1, 1))] if stride > 1 or dim != 4 * width else []
        layer = Leaderj1001(width, width, k=16, u=1, heads=4, m=23)
        self.conv2 = nn.Sequential(layer, *pool, nn.BatchNorm2d(width), nn.ReLU())
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential()
        if pool:
            self.shortcut = nn.Sequential(nn.Conv2d(dim, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        branch = self.conv2(self.bn1(self.conv1(x)).relu())
        return (self.bn3(self.conv3(branch)) + self.shortcut(x)).relu()


class Leaderj1001ResNet18(nn.Module):
    """Two blocks in each of four stages, all of stride 2."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        dim = 64
        for stage, width in enumerate((64, 128, 256, 512), 1):
            blocks = nn.Sequential(_Leaderj1001Block(dim, width, 2), _Leaderj1001Block(4 * width, width, 1))
            self.add_module(f"layer{stage}", blocks)
            dim = 4 * width
        self.linear = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.linear(torch.flatten(x.mean((2, 3)), 1))
