"""Imports scripts of this repository that are not in a package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """Import a new copy of a script, given its path relative to the repository root."""
    if (folder := str((ROOT / path).parent)) not in sys.path:
        sys.path.append(folder)  # scripts import each other
    name = f"script {path}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def call_main(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    """Call `main` of a script with command line options."""
    monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, options)])
    script.main()
