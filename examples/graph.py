"""Graphs with typed edges: lambda layers on nodes with edge embeddings (Sec. A.2 of the paper).

A graph has 12 to 24 colored nodes and two types of directed edges, to friends and to foes. The label of a node says
whether it has fewer red friends than red foes, equally many, or more. Each training step generates new graphs, pads
them to one size and passes a padding mask. One model has only the content term, so it sees the colors of all nodes but
no edges. The other model passes the output of an EdgeEmbedding to its layers. Both are also evaluated on graphs that
are twice as large.

    python examples/graph.py [--steps 300] [--seed 0]

It runs for ten seconds on two CPU cores. Output, with accuracies:

    8970 held-out nodes, 0.4285 of them with the most frequent label
    content only: held out 0.4280, on graphs twice as large 0.3823
    content and edges: held out 1.0000, on graphs twice as large 1.0000

Held-out accuracies of the two models with seed 1: 0.4235 and 1.0000, with seed 2: 0.4219 and 0.9999.
"""

import argparse
import inspect
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lambdanets as ln

COLORS, RED = 4, 0
EDGE_TYPES = 2  # friends, foes


def make_graphs(count: int, max_nodes: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return graphs of max_nodes / 2 to max_nodes nodes; a node has a color and on average three edges of each type.

    The label of a node is 0 for fewer red friends than red foes, 1 for equally many, 2 for more.
    """
    sizes = torch.randint(max_nodes // 2, max_nodes + 1, (count, 1), generator=generator)
    valid = torch.arange(max_nodes) < sizes  # (b, n), False for padding
    colors = torch.randint(COLORS, (count, max_nodes), generator=generator)
    pairs = valid[:, None, :, None] & valid[:, None, None, :] & ~torch.eye(max_nodes, dtype=torch.bool)
    probability = 3 / sizes.view(-1, 1, 1, 1)
    adjacent = pairs & (
        torch.rand(count, EDGE_TYPES, max_nodes, max_nodes, generator=generator) < probability
    )  # (b, types, n, m)
    red = (colors == RED)[:, None, None, :]
    friends, foes = (adjacent & red).sum(dim=3).unbind(dim=1)
    return {"valid": valid, "colors": colors, "adjacent": adjacent, "labels": (friends - foes).sign() + 1}


class GraphModel(nn.Module):
    """Residual blocks with one lambda layer each, which share their edge embeddings.

    Padding does not affect other nodes: the norms outside of the lambda layers are LayerNorms of single nodes, and the
    batch norms inside exclude padding by the mask.
    """

    def __init__(self, width: int, depth: int, position: bool, query_depth: int = 16) -> None:
        super().__init__()
        self.color = nn.Embedding(COLORS, width)
        self.edges = ln.layers.EdgeEmbedding(EDGE_TYPES, query_depth) if position else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(
            ln.LambdaLayer(width, query_depth=query_depth, position=position) for _ in range(depth)
        )
        self.projections = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)) for _ in range(depth)
        )
        for projection in self.projections:  # Appendix B: zero-initialize the end of residual branches
            for parameter in projection[-1].parameters():
                nn.init.zeros_(parameter)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, colors: Tensor, adjacent: Tensor, valid: Tensor) -> Tensor:
        """Map colors and valid (b, n), and adjacent (b, types, n, m), to the logits (b, n, 3) of the labels."""
        x, embeddings = self.color(colors), None
        if self.edges is not None:
            example, types, node, neighbor = adjacent.nonzero(as_tuple=True)
            size = (len(x), x.shape[1], x.shape[1])
            embeddings = self.edges(torch.stack([example, node, neighbor]), types, size)  # (b, n, m, k)
        for norm, layer, projection in zip(self.norms, self.layers, self.projections, strict=True):
            x = x + projection(layer(norm(x), mask=valid.unsqueeze(1), embeddings=embeddings))
        return self.head(x)


@torch.no_grad()
def accuracy(model: GraphModel, graphs: dict[str, Tensor]) -> float:
    """Return the accuracy over the nodes that are not padding."""
    model.eval()
    valid = graphs["valid"]
    correct = model(graphs["colors"], graphs["adjacent"], valid).argmax(dim=2) == graphs["labels"]
    return correct[valid].float().mean().item()


def train(model: GraphModel, steps: int, max_nodes: int, batch_size: int, generator: torch.Generator) -> list[float]:
    """Train on new graphs at each step; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        graphs = make_graphs(batch_size, max_nodes, generator)
        valid = graphs["valid"]
        logits = model(graphs["colors"], graphs["adjacent"], valid)
        loss = F.cross_entropy(logits[valid], graphs["labels"][valid])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % max(steps // 5, 1) == 0:
            print(f"  step {step:4}  training loss {losses[-1]:.4f}", flush=True)
    return losses


def main(
    steps: int = 300, seed: int = 0, width: int = 64, depth: int = 2, max_nodes: int = 24, batch_size: int = 32
) -> dict[str, dict]:
    """Train without and with edges; return the losses and held-out accuracies."""
    generator = torch.Generator().manual_seed(seed)
    held_out = make_graphs(500, max_nodes, generator)
    larger = make_graphs(250, 2 * max_nodes, generator)
    labels = held_out["labels"][held_out["valid"]]
    most_frequent = labels.bincount().max() / len(labels)
    print(f"{len(labels)} held-out nodes, {most_frequent:.4f} of them with the most frequent label")
    results = {}
    for name, position in {"content only": False, "content and edges": True}.items():
        torch.manual_seed(seed)
        model = GraphModel(width, depth, position)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters")
        start = time.perf_counter()
        losses = train(model, steps, max_nodes, batch_size, generator.manual_seed(seed + 1))  # same graphs for both
        results[name] = {
            "losses": losses,
            "held out": accuracy(model, held_out),
            "twice as large": accuracy(model, larger),
        }
        print(f"  {time.perf_counter() - start:.0f} s")
    for name, result in results.items():
        print(f"{name}: held out {result['held out']:.4f}, on graphs twice as large {result['twice as large']:.4f}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
