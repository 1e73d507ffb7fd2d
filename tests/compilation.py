"""A backend that counts the compilations of torch.compile."""

from typing import Any

from torch._dynamo.backends.debugging import aot_eager


class CompileCounter:
    """Like the backend "aot_eager" of torch.compile, and counts its compilations."""

    def __init__(self) -> None:
        self.num_compilations = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.num_compilations += 1
        return aot_eager(graph, inputs)
