"""A backend that counts the compilations of torch.compile."""

from typing import Any

from torch._dynamo.backends.debugging import aot_eager


class Counter:
    """Like the backend "aot_eager" of torch.compile, and counts its compilations."""

    def __init__(self) -> None:
        self.compilations = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compilations += 1
        return aot_eager(graph, inputs)
