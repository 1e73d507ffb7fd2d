# %% [markdown]
# # Swap a convolution in your own network, and see what it looks at
#
# You have a network in PyTorch with 3x3 convolutions. Two lines replace some of them by lambda layers, which see
# the whole feature map; then one call shows which positions an output was computed from. Two cores need
# half a minute. `pip install ".[train]"`, for scikit-learn's digits and matplotlib.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import lambdanets as ln

# %% [markdown]
# ## Data: two digits in one image
#
# Each image of 32 x 32 pixels has two scanned digits, one in the upper left and one in the lower right. The label
# says whether they are the same digit, so the network has to compare distant positions. Training and test
# images are made of different scans.

# %%
scans = torch.tensor(load_digits().images, dtype=torch.float32) / 16
labels = torch.tensor(load_digits().target)


def make_pairs(first, last, count, generator):
    """Return images (count, 1, 32, 32) of two of the scans first..last, and whether their digits are equal."""
    one = torch.randint(first, last, (count,), generator=generator)
    other = torch.randint(first, last, (count,), generator=generator)
    for i in range(0, count, 2):  # half of the pairs are equal
        same = (labels[first:last] == labels[one[i]]).nonzero()[:, 0] + first
        other[i] = same[torch.randint(len(same), (), generator=generator)]
    images = torch.zeros(count, 1, 32, 32)
    images[:, 0, 3:11, 3:11] = scans[one]
    images[:, 0, 20:28, 20:28] = scans[other]
    return images, (labels[one] == labels[other]).long()


generator = torch.Generator().manual_seed(0)
train_images, train_labels = make_pairs(0, 1400, 2000, generator)
test_images, test_labels = make_pairs(1400, 1797, 1000, generator)

# %% [markdown]
# ## Your network
#
# A stack of convolutions, as you may have it. The last block has maps of 8 x 8 positions.


# %%
def make_network():
    torch.manual_seed(0)

    def block(dim, dim_out, stride):
        conv = nn.Conv2d(dim, dim_out, 3, stride=stride, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(dim_out), nn.ReLU())

    blocks = [block(1, 32, 2), block(32, 64, 2), block(64, 64, 1), block(64, 64, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))


convolutions = make_network()
print(sum(parameter.numel() for parameter in convolutions.parameters()), "parameters")

# %% [markdown]
# ## The swap
#
# `replace_convolutions` takes a function that makes the new layer from the old one, and a pattern of names. It
# returns the names of the layers that it replaced. A `LambdaLayer2d` takes and returns maps like the convolution.

# %%
network = make_network()
replaced = ln.replace_convolutions(
    network, lambda conv: ln.LambdaLayer2d(conv.in_channels, conv.out_channels, scope=15), "[23].0"
)
print(replaced)
print(sum(parameter.numel() for parameter in network.parameters()), "parameters")

# %% [markdown]
# ## Train both
#
# Nothing changes in the training loop.


# %%
def train(network, epochs=6):
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    steps = epochs * len(train_images) // 100
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_images), generator=order).split(100):
            loss = F.cross_entropy(network(train_images[batch]), train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        return (network(test_images).argmax(1) == test_labels).float().mean().item()


print(f"3x3 convolutions: {100 * train(convolutions):.1f}% of the test images")
print(f"lambda layers:    {100 * train(network):.1f}% of the test images")

# %% [markdown]
# The comparison of two distant digits is what convolutions of a short range learn slowly: with twice the images and
# 8 epochs they reach 76%. On other tasks the difference is smaller, or there is none: see
# [where lambda layers did not help](../choose.md#where-lambda-layers-did-not-help).

# %% [markdown]
# ## What does it look at?
#
# A lambda layer never computes an attention map, but its output is a weighted sum of the values, and
# `attention_map` returns the exact weights, by content and by position, for one output position.
# `at` is a pixel (row, column) of the image, here in the upper left digit; the map has 8 x 8 positions.

# %%
image = test_images[:1]
attention = ln.attention_map(network, image, layer=replaced[-1], at=(6, 6))
print(attention)

figure, axes = plt.subplots(1, 3, figsize=(9, 3))
axes[0].imshow(image[0, 0], cmap="gray")
axes[0].set_title("image")
axes[1].imshow(attention.content.mean(0), cmap="RdBu")
axes[1].set_title("weights by content")
axes[2].imshow(attention.position.mean(0), cmap="RdBu")
axes[2].set_title("weights by position")
plt.show()

# %% [markdown]
# Next: [options of the layers](../layers.md), [attention maps](../explain.md) of whole models, and
# [which layer or network to choose](../choose.md).
