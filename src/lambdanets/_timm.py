"""Makes timm.create_model find this package's models, in whichever order the two are imported.

timm has no plug-in mechanism: models are registered by importing their module. Importing timm takes seconds, so this
package does not do it on its own; it waits for somebody else's `import timm`.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # typing and importlib's other modules would double the time until the command line answers
if TYPE_CHECKING:
    import importlib.abc
    import importlib.machinery
    from collections.abc import Sequence
    from types import ModuleType

    Loader = importlib.abc.Loader
else:
    Loader = object


def register_with_timm() -> None:
    """Register the models now if timm is there, or else as soon as it is imported."""
    if "timm" in sys.modules:
        importlib.import_module("lambdanets.models")
    elif not any(isinstance(finder, _TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TimmFinder())


class _TimmFinder:
    """Finds timm as usual, and has its loader import the models afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "timm":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("timm")
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        # timm keeps its own loader, for whoever reads its files through it
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        importlib.import_module("lambdanets.models")
