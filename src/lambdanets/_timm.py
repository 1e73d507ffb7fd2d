"""Makes timm.create_model find this package's models, whether timm or lambdanets is imported first.

timm has no plug-in mechanism: models are registered when their module is imported. Importing timm takes seconds, so
this package does not import it. Instead, an import hook registers the models when the user's program imports timm.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # importing typing would double the start-up time of the command line
if TYPE_CHECKING:
    from typing import Any


def register_with_timm() -> None:
    """Register the models now if timm is already imported, otherwise when it is."""
    if "timm" in sys.modules:
        importlib.import_module("lambdanets.models")
    elif not any(isinstance(finder, _TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TimmFinder())


class _TimmFinder:
    """Finds timm as usual, and lets its loader also register this package's models."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "timm":
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            importlib.import_module("lambdanets.models")

        loader.exec_module = execute_and_register  # of this loader only
        return spec
