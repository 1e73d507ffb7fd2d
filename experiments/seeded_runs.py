"""Training runs of scripts that compare networks over seeds, and the file with their results."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any


class SeededRunsParser(argparse.ArgumentParser):
    """Parses the options that all these scripts have. Without data, a script only writes its page."""

    def __init__(self, description: str, page: Path) -> None:
        super().__init__(description=description)
        self.add_argument("data", type=Path, nargs="?")
        self.add_argument("--work", type=Path, help="folder for the runs")
        self.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        self.add_argument("--jobs", type=int, default=1, help="runs to train at the same time")
        self.add_argument("--out", type=Path, help="results file")
        self.add_argument("--page", type=Path, default=page)

    def parse_options(self) -> argparse.Namespace:
        options = self.parse_args()
        if options.data is not None and options.work is None:
            self.error("--work must name a folder for the runs")
        return options


def train(commands: Mapping[Path, Sequence[str]], jobs: int) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run `lambdanets` with the arguments of each run folder, and yield each folder and its result as it finishes.

    The arguments must have `--run FOLDER`: an unfinished run resumes, a finished one is not trained again, and one with
    another recipe fails. The other runs are trained in spite of failures; then SystemExit is raised. jobs: runs at the
    same time.
    """
    failed = []
    with ThreadPool(jobs) as pool:
        for run, code in pool.imap_unordered(_run, commands.items()):
            if code:
                failed.append(f"{run} (exit code {code})")
            else:
                yield run, json.loads((run / "result.json").read_text(encoding="utf-8"))
    if failed:
        raise SystemExit(f"failed runs, which the results do not have: {', '.join(failed)}")


def _run(command: tuple[Path, Sequence[str]]) -> tuple[Path, int]:
    run, arguments = command
    return run, subprocess.run([sys.executable, "-m", "lambdanets", *arguments], check=False).returncode


def stored_runs(out: Path) -> list[dict[str, Any]]:
    """The runs in a results file; none without a file."""
    return json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []


def is_stored(out: Path, key: Mapping[str, Any]) -> bool:
    """Whether a results file has the run that `key` identifies."""
    return any(key.items() <= run.items() for run in stored_runs(out))


def store(out: Path, key: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Write a run, which `key` identifies, to a results file; it replaces a run with the same key."""
    kept = [run for run in stored_runs(out) if not key.items() <= run.items()]
    runs = sorted([*kept, {**key, **fields}], key=lambda run: [run[name] for name in key])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")


def processors(runs: Sequence[Mapping[str, Any]]) -> str:
    """Name the processors that trained runs, with their seeds if there are several."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run["hardware"]["processor"], set()).add(run["seed"])
    if len(seeds) == 1:
        return next(iter(seeds))
    names = (
        f"{name} (seed{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))})"
        for name, numbers in seeds.items()
    )
    return " and ".join(names)
