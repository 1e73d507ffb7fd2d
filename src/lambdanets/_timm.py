"""Makes timm.create_model find this package's models, whether timm or lambdanets is imported first.

timm has no plug-in mechanism: models are registered when their module is imported. Importing timm takes seconds, so
this package does not import it. Instead, an import hook registers the models when the user's program imports timm.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # importing typing and importlib.abc would double the start-up time of the command line
if TYPE_CHECKING:
    import importlib.abc
    import importlib.machinery
    from collections.abc import Sequence
    from types import ModuleType

    Loader = importlib.abc.Loader
else:
    Loader = object


def register_with_timm() -> None:
    """Register the models now if timm is already imported, otherwise when it is."""
    if "timm" in sys.modules:
        importlib.import_module("lambdanets.models")
    elif not any(isinstance(finder, _TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TimmFinder())


class _TimmFinder:
    """Finds timm as usual, and replaces its loader by one that also registers this package's models."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "timm":
            return None
        # this finder remains until timm is loaded, since other code may ask for the spec without loading it
        finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


class _RegisteringLoader(Loader):
    def __init__(self, loader: importlib.abc.Loader, finder: _TimmFinder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        self.loader.exec_module(module)
        # restore timm's own loader, because other code may read timm's files through it
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        importlib.import_module("lambdanets.models")
