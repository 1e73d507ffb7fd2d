"""Graphs with typed edges: lambda layers on nodes with edge embeddings (A.2 of the paper).

A graph has 12 to 24 colored nodes and two types of directed edges, to friends and to foes. The label of a node is
whether it has fewer, as many or more red friends than red foes. Graphs are generated from the seed, new ones at every
step, and padded to one size, with a padding mask. One model has only the content term, and so the colors of all nodes
but no edges; the other passes edge embeddings from an EdgeEmbedding to its layers. Both are also evaluated on graphs
twice as large.

    python examples/graph.py [--steps 300] [--seed 0]

Ten seconds on two cores. It printed:

    8970 held-out nodes, the commonest label has 0.4285 of them
    content only: held out 0.4280, on graphs twice as large 0.3823
    content and edges: held out 1.0000, on graphs twice as large 1.0000

and with seeds 1 and 2, held out: 0.4235 and 1.0000, 0.4219 and 0.9999.
"""

import time

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

import lambdanets as ln

COLORS, RED = 4, 0
TYPES = 2  # of edges: friends, foes


def make_graphs(count: int, max_nodes: int, random: torch.Generator) -> dict[str, Tensor]:
    """Graphs of max_nodes / 2 to max_nodes nodes, each with a color and on average three edges of each type.

    The label of a node: fewer (0), as many (1) or more (2) red friends than red foes.
    """
    sizes = torch.randint(max_nodes // 2, max_nodes + 1, (count, 1), generator=random)
    valid = torch.arange(max_nodes) < sizes  # (b, n), False for padding
    colors = torch.randint(COLORS, (count, max_nodes), generator=random)
    pairs = valid[:, None, :, None] & valid[:, None, None, :] & ~torch.eye(max_nodes, dtype=torch.bool)
    p = 3 / sizes.view(-1, 1, 1, 1)
    adjacent = pairs & (torch.rand(count, TYPES, max_nodes, max_nodes, generator=random) < p)  # (b, type, n, m)
    red = (colors == RED)[:, None, None, :]
    friends, foes = (adjacent & red).sum(dim=3).unbind(dim=1)
    return {"valid": valid, "colors": colors, "adjacent": adjacent, "labels": (friends - foes).sign() + 1}


class GraphModel(nn.Module):
    """Residual blocks with one lambda layer each and shared edge embeddings.

    Norms outside of the lambda layers are LayerNorms per node, which padding does not affect; the batch norms inside
    exclude it by the mask.
    """

    def __init__(self, width: int, depth: int, position: bool, query_depth: int = 16) -> None:
        super().__init__()
        self.color = nn.Embedding(COLORS, width)
        self.edges = ln.layers.EdgeEmbedding(TYPES, query_depth) if position else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(
            ln.LambdaLayer(width, query_depth=query_depth, position=position) for _ in range(depth)
        )
        self.projects = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)) for _ in range(depth)
        )
        for project in self.projects:  # Appendix B: zero-initialize the end of residual branches
            for parameter in project[-1].parameters():
                nn.init.zeros_(parameter)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, colors: Tensor, adjacent: Tensor, valid: Tensor) -> Tensor:
        """colors and valid (b, n), adjacent (b, types, n, m) to logits (b, n, 3) of the labels."""
        x, embeddings = self.color(colors), None
        if self.edges is not None:
            example, types, node, neighbour = adjacent.nonzero(as_tuple=True)
            size = (len(x), x.shape[1], x.shape[1])
            embeddings = self.edges(torch.stack([example, node, neighbour]), types, size)  # (b, n, m, k)
        for norm, layer, project in zip(self.norms, self.layers, self.projects, strict=True):
            x = x + project(layer(norm(x), mask=valid.unsqueeze(1), embeddings=embeddings))
        return self.head(x)


@torch.no_grad()
def accuracy(model: GraphModel, graphs: dict[str, Tensor]) -> float:
    """Accuracy over the nodes that are not padding."""
    model.eval()
    valid = graphs["valid"]
    correct = model(graphs["colors"], graphs["adjacent"], valid).argmax(dim=2) == graphs["labels"]
    return correct[valid].float().mean().item()


def train(model: GraphModel, steps: int, max_nodes: int, batch_size: int, random: torch.Generator) -> list[float]:
    """Train on new graphs at every step; returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        graphs = make_graphs(batch_size, max_nodes, random)
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
    """Train without and with edges; returns the losses and held-out accuracies."""
    random = torch.Generator().manual_seed(seed)
    held_out = make_graphs(500, max_nodes, random)
    larger = make_graphs(250, 2 * max_nodes, random)
    labels = held_out["labels"][held_out["valid"]]
    print(f"{len(labels)} held-out nodes, the commonest label has {labels.bincount().max() / len(labels):.4f} of them")
    results = {}
    for name, position in {"content only": False, "content and edges": True}.items():
        torch.manual_seed(seed)
        model = GraphModel(width, depth, position)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters")
        start = time.perf_counter()
        losses = train(model, steps, max_nodes, batch_size, random.manual_seed(seed + 1))  # the same graphs for both
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
    tyro.cli(main)
