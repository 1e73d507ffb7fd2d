"""Counts what torch.compile compiles."""

from typing import Any

from torch._dynamo.backends.debugging import aot_eager


class Counter:
    """A backend that runs as torch.compile's "aot_eager" does, backward included, and counts its compilations."""

    def __init__(self) -> None:
        self.compilations = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compilations += 1
        return aot_eager(graph, inputs)
