# %% [markdown]
# # A causal lambda layer as a language model, one million tokens
#
# `LambdaLayer1d(causal=True)` sees all earlier positions, in linear time and memory: one sequence of a million
# tokens fits on a laptop. For generation it is a recurrent network with a state of constant size. This page trains
# a small model on the source code of Python's standard library, about a minute on two cores.

# %%
import argparse
import ast
import datetime
import difflib
import inspect
import math
import pathlib
import re
import tarfile
import time
import typing
import zipfile

import torch
import torch.nn.functional as F
from torch import nn

import lambdanets as ln

torch.manual_seed(0)
modules = (argparse, ast, datetime, difflib, inspect, pathlib, tarfile, typing, zipfile)
text = re.sub(" +", " ", "".join(inspect.getsource(module) for module in modules))  # without indentation
tokens = torch.tensor([min(ord(character), 127) for character in text])
held_out = tokens[-20_000:]
print(f"{len(tokens):,} characters")

# %% [markdown]
# ## The model
#
# Each block has one causal lambda layer and one MLP. Batch norm would see later positions in training, so the
# layers have none and the norms are LayerNorms over the channels of one position. The layer takes channels first.


# %%
class Block(nn.Module):
    def __init__(self, width, scope):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = ln.LambdaLayer1d(width, scope=scope, causal=True, batch_norm=False)
        self.project = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):  # (b, n, width)
        x = x + self.project(self.layer(self.norm(x).transpose(1, 2)).transpose(1, 2))
        return x + self.mlp(x)

    def step(self, x, state):  # (b, width) at the next position
        output, state = ln.decode_step(self.layer, self.norm(x), state)
        x = x + self.project(output)
        return x + self.mlp(x), state


class LanguageModel(nn.Module):
    def __init__(self, width=64, depth=2, scope=63):
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, scope) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = LanguageModel()
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")

# %% [markdown]
# ## Train


# %%
@torch.no_grad()
def bits_per_character(length=1000):
    """The cross-entropy on the held-out text, over windows of 1,000 characters."""
    windows = held_out.view(-1, length)
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item() / math.log(2)


steps, length, batch_size = 300, 128, 16
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, steps)
for step in range(1, steps + 1):
    starts = torch.randint(len(tokens) - len(held_out) - length, (batch_size, 1))
    batch = tokens[starts + torch.arange(length + 1)]
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 100 == 0:
        print(f"step {step}: {bits_per_character():.2f} bits per character on held-out text")

# %% [markdown]
# ## Generate, with a state of constant size
#
# `start_decoding` and `decode_step` compute what `forward` computes, one position at a time. The state of a layer
# holds its content lambda and the last `scope // 2` values, however long the text is.

# %%
model.eval()
states = [ln.start_decoding(block.layer, batch_size=1) for block in model.blocks]
generated = list("def ")
with torch.no_grad():
    for position in range(160):
        x = model.embedding(torch.tensor([ord(generated[position])]))
        for i, block in enumerate(model.blocks):
            x, states[i] = block.step(x, states[i])
        if position + 1 == len(generated):
            probabilities = (model.head(x)[0] / 0.6).softmax(0)
            generated.append(chr(int(torch.multinomial(probabilities, 1))))
    expected = model(torch.tensor([[ord(character) for character in generated[:-1]]]))[0, -1]
print("".join(generated))
print(f"decoding and the full forward pass differ by {(model.head(x)[0] - expected).abs().max():.1e}")

# %% [markdown]
# ## A million tokens in one sequence
#
# The layer has no attention map, so memory grows linearly: a map of a million by a million weights would take
# 4 TB per head. The model was trained on 128 positions, but the content term covers all earlier ones.

# %%
million = tokens.repeat(-(-1_000_000 // len(tokens)))[:1_000_000]
layer = model.blocks[0].layer
with torch.no_grad():
    x = model.embedding(million).T[None]  # (1, 64, 1,000,000)
    start = time.perf_counter()
    y = layer(x)
    print(f"{tuple(y.shape)} in {time.perf_counter() - start:.1f} s")
    # causal: the first outputs do not depend on what comes later, up to rounding
    print(f"difference to the first 1,000 tokens alone: {(layer(x[..., :1000]) - y[..., :1000]).abs().max():.1e}")

# %% [markdown]
# [`examples/character_model.py`](../../examples/character_model.py) is a longer version with a comparison to
# a model without relative positions. [Layers](../layers.md) has masks, other scopes and 2-D causal layers.
