"""Runs timm's own tests/test_models.py against every model of this package.

    pip download timm==1.0.31 --no-deps --no-binary :all: && tar xf timm-1.0.31.tar.gz
    PYTHONPATH=src python experiments/timm_tests.py timm-1.0.31 [--names 'lambda_resnet*'] [--out FILE]

The argument is an unpacked source distribution or a checkout of timm, of the same version as the installed one. timm's
tests are parametrized over `timm.list_models`, which is patched to return only this package's models; their filters by
name still apply. Tests of TorchScript, which PyTorch has deprecated and the layers do not support, are deselected, and
U-Nets, because timm's tests are for classifiers.
The script prints pytest's report; --out writes the tests' outcomes as JSON. All models take about an hour on two cores.
"""

import argparse
import fnmatch
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import timm

from lambdanets.models import list_models
from lambdanets_lab.results import write_results

MARKERS = ("base", "forward", "backward", "cfg", "cfg_nonstd", "torchscript", "features", "fxforward", "fxbackward")


class ModelSelection:
    """A pytest plugin that selects the tests of our models and records the outcomes."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.outcomes: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_configure(self, config: pytest.Config) -> None:
        for marker in (*MARKERS, "timeout(seconds)"):
            config.addinivalue_line("markers", marker)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Function]) -> None:
        selected = [item for item in items if self._is_selected(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = selected

    def _is_selected(self, item: pytest.Function) -> bool:
        name = item.callspec.params.get("model_name") if hasattr(item, "callspec") else None
        # not a string: pytest's placeholder for a test without models
        return isinstance(name, str) and name.split(".")[0] in self.names and "torchscript" not in item.originalname

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            test, _, parameters = report.nodeid.rpartition("::")[2].partition("[")
            self.outcomes[test][parameters.rstrip("]")] = report.outcome


def patch_list_models(names: list[str]) -> None:
    """Patch timm.list_models to return only these names."""
    original = timm.list_models

    def list_models(*filters: Any, **options: Any) -> list[str]:
        options.pop("module", None)  # timm's tests filter by modules of timm
        return [name for name in original(*filters, **options) if name.split(".")[0] in names]

    timm.list_models = list_models


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs timm's tests/test_models.py against this package's models.")
    parser.add_argument("timm", type=Path, help="folder of timm's source distribution or checkout")
    parser.add_argument("--names", nargs="+", default=["*"], help="names or patterns of models; default: all")
    parser.add_argument("--tests", help="expression that selects tests, for pytest -k")
    parser.add_argument("--out", type=Path, help="JSON file for the outcomes")
    arguments = parser.parse_args()
    file = arguments.timm / "tests" / "test_models.py"
    if not file.is_file():
        parser.error(f"timm must be a folder with tests/test_models.py, got {arguments.timm}")
    classifiers = [name for name in list_models() if "unet" not in name]
    names = [name for name in classifiers if any(fnmatch.fnmatch(name, pattern) for pattern in arguments.names)]
    if not names:
        parser.error(f"--names must match at least one of {', '.join(classifiers)}")
    patch_list_models(names)
    plugin = ModelSelection(names)
    options = [
        "-q",
        "-rfEs",
        "--tb=short",
        *["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir"],
        str(arguments.timm),
    ]
    if arguments.tests:
        options += ["-k", arguments.tests]
    code = pytest.main([str(file), *options], plugins=[plugin])
    if arguments.out:
        result = {
            "timm": timm.__version__,
            "models": names,
            "counts": {test: dict(Counter(outcomes.values())) for test, outcomes in plugin.outcomes.items()},
            "not_passed": {
                f"{test}[{parameters}]": outcome
                for test, outcomes in plugin.outcomes.items()
                for parameters, outcome in outcomes.items()
                if outcome != "passed"
            },
        }
        write_results(arguments.out, result)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
