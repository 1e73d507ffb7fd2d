"""A backend that counts the compilations of torch.compile."""

from typing import Any

from torch._dynamo.backends.debugging import eager


class CompileCounter:
    """Calls a backend of torch.compile and counts its compilations.

    "eager" tests what is traced; "aot_eager", which takes three times as long, also derivatives of the graph.
    """

    def __init__(self, backend: Any = eager) -> None:
        self.backend, self.num_compilations = backend, 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.num_compilations += 1
        return self.backend(graph, inputs)
