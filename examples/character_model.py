"""A character-level causal language model, with and without relative positions, and step-by-step decoding.

Two models of the same width are trained with the same seed and batches on the text of this project (its pages and
src). The last tenth of each file is held out. One model has only the content term, so it sees the previous
characters but not their order. The other model also has the position term. It then generates text character by
character, with a state of constant size per layer. Its logits are compared with those of one forward pass over the
generated text.

    python examples/character_model.py [--steps 250] [--seed 0] [--prompt "def "]

It runs for one to two minutes on two CPU cores. Output in November 2026; the text has changed since:

    held out, content only: 3.632 bits per character
    held out, content and position: 2.416 bits per character
    logits of decoding and of a full forward pass differ by at most 5.7e-06

With a slightly shorter text, seed 1 reached 3.627 and 2.383, seed 2 3.609 and 2.406. After so few steps, the model has
learned the syntax of code, but not its meaning. Code repeats itself: 2% of the held-out passages of 50 characters also
occur in the training text.
"""

import argparse
import inspect
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lambdanets as ln

ROOT = Path(__file__).resolve().parents[1]


class Block(nn.Module):
    """A residual branch with a lambda layer, followed by a residual branch with an MLP.

    Batch norm and group norm are not causal, because their statistics in training include later positions. So
    batch_norm is False, and all norms are LayerNorms over the channels of one position. As Appendix B of the paper
    recommends, there is one lambda layer per residual block, and the last layer of each branch is zero-initialized.
    """

    def __init__(self, width: int, scope: int, position: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = ln.LambdaLayer1d(width, scope=scope, position=position, causal=True, batch_norm=False)
        # outputs are sums of embeddings from N(0, 1) over half of the scope, so they are large and need a norm
        self.project = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        for parameter in (*self.project[-1].parameters(), *self.mlp[-1].parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (b, n, width) to (b, n, width); the lambda layer takes channels first."""
        x = x + self.project(self.layer(self.norm(x).transpose(1, 2)).transpose(1, 2))
        return x + self.mlp(x)

    def step(self, x: Tensor, state: ln.layers.DecodingState) -> tuple[Tensor, ln.layers.DecodingState]:
        """Map x (b, width) at the next position to the output (b, width) and the next state."""
        output, state = ln.decode_step(self.layer, self.norm(x), state)
        x = x + self.project(output)
        return x + self.mlp(x), state


class CharacterModel(nn.Module):
    def __init__(self, num_characters: int, width: int, depth: int, scope: int, position: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_characters, width)
        self.blocks = nn.ModuleList(Block(width, scope, position) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_characters))

    def forward(self, text: Tensor) -> Tensor:
        """Map characters (b, n) to the logits (b, n, num_characters) of the character after each."""
        x = self.embedding(text)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def start(self, batch_size: int) -> list[ln.layers.DecodingState]:
        """Return the states before the first character, one per block."""
        return [ln.start_decoding(block.layer, batch_size) for block in self.blocks]

    def step(
        self, character: Tensor, states: list[ln.layers.DecodingState]
    ) -> tuple[Tensor, list[ln.layers.DecodingState]]:
        """Map the next character (b,) to the logits (b, num_characters) of the one after it, and the next states."""
        x, next_states = self.embedding(character), []
        for block, state in zip(self.blocks, states, strict=True):
            x, state = block.step(x, state)
            next_states.append(state)
        return self.head(x), next_states


def read_text() -> tuple[str, str]:
    """Return the text of this project: the first nine tenths of each file for training, the last tenth held out."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("dev/*.md"), *ROOT.glob("src/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sorted(files)]
    splits = [(text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]) for text in texts]
    return "".join(first for first, _ in splits), "".join(last for _, last in splits)


@torch.no_grad()
def bits_per_character(model: nn.Module, text: Tensor, length: int) -> float:
    """Return the cross-entropy in bits per character, over non-overlapping windows of the text."""
    windows = text[: (len(text) - 1) // length * length + 1].unfold(0, length + 1, length)
    losses = [
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
        for batch in windows.split(64)
    ]
    return sum(losses) / (len(windows) * length) / math.log(2)


def train(
    model: nn.Module, text: Tensor, held_out: Tensor, steps: int, seed: int, length: int, batch_size: int
) -> list[float]:
    """Train on random windows of the text; return the held-out bits per character, measured about five times."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    window_generator = torch.Generator().manual_seed(seed)  # both models get the same batches
    bits = []
    for step in range(1, steps + 1):
        starts = torch.randint(len(text) - length, (batch_size, 1), generator=window_generator)
        batch = text[starts + torch.arange(length + 1)]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(steps // 5, 1) == 0 or step == steps:
            bits.append(bits_per_character(model, held_out, length))
            print(f"  step {step:4}  training {loss.item() / math.log(2):.3f}  held out {bits[-1]:.3f}", flush=True)
    return bits


@torch.no_grad()
def generate(model: CharacterModel, prompt: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the prompt (p,) followed by `count` sampled characters, and the logits (p + count, num_characters)."""
    sampling_generator = torch.Generator().manual_seed(seed)
    text, logits, states = prompt.tolist(), [], model.start(1)
    for position in range(len(prompt) + count):
        if position == len(text):
            probabilities = (logits[-1] / 0.7).softmax(dim=0)  # temperature 0.7
            text.append(torch.multinomial(probabilities, 1, generator=sampling_generator).item())
        output, states = model.step(torch.tensor([text[position]]), states)
        logits.append(output[0])
    return torch.tensor(text), torch.stack(logits)


def main(
    steps: int = 250,
    seed: int = 0,
    width: int = 96,
    depth: int = 3,
    scope: int = 31,
    length: int = 128,
    batch_size: int = 24,
    prompt: str = "def ",
    generated: int = 200,
) -> dict[str, list[float]]:
    """Train without and with relative positions, then generate text; return the held-out bits per character."""
    if not prompt:
        raise ValueError("prompt must have at least one character, got an empty string")
    text, held_out = read_text()
    alphabet = "\0" + "".join(sorted(set(text)))  # \0 for unknown characters
    indices = {character: i for i, character in enumerate(alphabet)}
    text, held_out, prompt_indices = (
        torch.tensor([indices.get(character, 0) for character in string]) for string in (text, held_out, prompt)
    )
    print(f"{len(text)} training characters, {len(held_out)} held out, alphabet of {len(alphabet)}")
    bits = {}
    for name, position in {"content only": False, "content and position": True}.items():
        torch.manual_seed(seed)
        model = CharacterModel(len(alphabet), width, depth, scope, position)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters; bits per character")
        start_time = time.perf_counter()
        bits[name] = train(model, text, held_out, steps, seed, length, batch_size)
        print(f"  {time.perf_counter() - start_time:.0f} s")
    for name in bits:
        print(f"held out, {name}: {bits[name][-1]:.3f} bits per character")

    model.eval()
    generated_text, logits = generate(model, prompt_indices, generated, seed)
    with torch.no_grad():
        expected = model(generated_text.unsqueeze(0))[0]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    print(f"logits of decoding and of a full forward pass differ by at most {(logits - expected).abs().max():.1e}")
    print("".join(alphabet[i] for i in generated_text.tolist()))
    return bits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
