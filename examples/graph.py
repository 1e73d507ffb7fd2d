"""Graphs with typed edges: a lambda layer on nodes whose embeddings are those of the edges (A.2 of the paper).

A graph has 12 to 24 coloured nodes, and between them two types of directed edges, to friends and to foes. A node's
label says whether it has fewer, as many or more red friends than red foes. Graphs are made from the seed, new ones at
every step, and padded to one size; a mask leaves the padding out. One model has the content term alone and so knows the
colours of all nodes but no edge; the other gives its layers what an EdgeEmbedding makes of the edges, at the call. Both
are then tried on graphs twice as large.

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

COLOURS, RED = 4, 0
TYPES = 2  # of edges: friends, foes


def make_graphs(count: int, most_nodes: int, random: torch.Generator) -> dict[str, Tensor]:
    """Graphs of half to all of `most_nodes` nodes, with a colour each and about three edges of each type to a node.

    The label of a node: has it fewer (0), as many (1) or more (2) red friends than red foes?
    """
    sizes = torch.randint(most_nodes // 2, most_nodes + 1, (count, 1), generator=random)
    real = torch.arange(most_nodes) < sizes  # (b, n), the rest is padding
    colours = torch.randint(COLOURS, (count, most_nodes), generator=random)
    pairs = real[:, None, :, None] & real[:, None, None, :] & ~torch.eye(most_nodes, dtype=torch.bool)
    chance = 3 / sizes.view(-1, 1, 1, 1)
    adjacent = pairs & (torch.rand(count, TYPES, most_nodes, most_nodes, generator=random) < chance)  # (b, type, n, m)
    red = (colours == RED)[:, None, None, :]
    friends, foes = (adjacent & red).sum(dim=3).unbind(dim=1)
    return {"real": real, "colours": colours, "adjacent": adjacent, "labels": (friends - foes).sign() + 1}


class GraphModel(nn.Module):
    """Residual blocks, a lambda layer in each, that share one embedding of the edges.

    Norms outside the lambda layers are LayerNorms over a node, so that padding cannot enter them; the layers leave it
    out of their batch norm by the mask.
    """

    def __init__(self, width: int, depth: int, position: bool, query_depth: int = 16) -> None:
        super().__init__()
        self.colour = nn.Embedding(COLOURS, width)
        self.edges = ln.layers.EdgeEmbedding(TYPES, query_depth) if position else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(
            ln.LambdaLayer(width, query_depth=query_depth, position=position) for _ in range(depth)
        )
        self.projects = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)) for _ in range(depth)
        )
        for project in self.projects:  # Appendix B: what a residual branch ends with starts at zero
            for parameter in project[-1].parameters():
                nn.init.zeros_(parameter)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, colours: Tensor, adjacent: Tensor, real: Tensor) -> Tensor:
        """colours and real (b, n), adjacent (b, types, n, m) to logits (b, n, 3) of the labels."""
        x, embeddings = self.colour(colours), None
        if self.edges is not None:
            example, types, node, neighbour = adjacent.nonzero(as_tuple=True)
            size = (len(x), x.shape[1], x.shape[1])
            embeddings = self.edges(torch.stack([example, node, neighbour]), types, size)  # (b, n, m, k)
        for norm, layer, project in zip(self.norms, self.layers, self.projects, strict=True):
            x = x + project(layer(norm(x), mask=real.unsqueeze(1), embeddings=embeddings))
        return self.head(x)


@torch.no_grad()
def accuracy(model: GraphModel, graphs: dict[str, Tensor]) -> float:
    """Share of the real nodes whose label is found."""
    model.eval()
    real = graphs["real"]
    found = model(graphs["colours"], graphs["adjacent"], real).argmax(dim=2) == graphs["labels"]
    return found[real].float().mean().item()


def train(model: GraphModel, steps: int, most_nodes: int, batch_size: int, random: torch.Generator) -> list[float]:
    """On new graphs at every step; the losses."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        graphs = make_graphs(batch_size, most_nodes, random)
        real = graphs["real"]
        logits = model(graphs["colours"], graphs["adjacent"], real)
        loss = F.cross_entropy(logits[real], graphs["labels"][real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % max(steps // 5, 1) == 0:
            print(f"  step {step:4}  training loss {losses[-1]:.4f}", flush=True)
    return losses


def main(
    steps: int = 300, seed: int = 0, width: int = 64, depth: int = 2, most_nodes: int = 24, batch_size: int = 32
) -> dict[str, dict]:
    """Train without and with the edges; returns the losses and the held-out accuracies of both."""
    random = torch.Generator().manual_seed(seed)
    held_out = make_graphs(500, most_nodes, random)
    larger = make_graphs(250, 2 * most_nodes, random)
    labels = held_out["labels"][held_out["real"]]
    print(f"{len(labels)} held-out nodes, the commonest label has {labels.bincount().max() / len(labels):.4f} of them")
    results = {}
    for name, position in {"content only": False, "content and edges": True}.items():
        torch.manual_seed(seed)
        model = GraphModel(width, depth, position)
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters")
        began = time.perf_counter()
        losses = train(model, steps, most_nodes, batch_size, random.manual_seed(seed + 1))  # both on the same graphs
        results[name] = {
            "losses": losses,
            "held out": accuracy(model, held_out),
            "twice as large": accuracy(model, larger),
        }
        print(f"  {time.perf_counter() - began:.0f} s")
    for name, result in results.items():
        print(f"{name}: held out {result['held out']:.4f}, on graphs twice as large {result['twice as large']:.4f}")
    return results


if __name__ == "__main__":
    tyro.cli(main)
