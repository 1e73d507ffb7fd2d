"""Training runs of scripts that compare networks over seeds, and the file with their results."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from pages import PageScript, read_results

from lambdanets.records import write_json

Key = dict[str, Any]  # what identifies a run in a results file, such as its recipe and seed
# of result.json
RUN_FIELDS = ("seconds", "parameters", "epochs", "training_images", "commit", "versions", "hardware")


class SeededRuns(PageScript):
    """Options of scripts that train. Without data, a script only writes its page."""

    def __init__(self, doc: str | None, page: str, seeds: Sequence[int] = (0, 1, 2)) -> None:
        super().__init__(doc, page)
        self.add_argument("data", type=Path, nargs="?")
        self.add_argument("--out", type=Path, help="results file")
        self.add_argument("--work", type=Path, help="folder for the runs")
        self.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
        self.add_argument("--jobs", type=int, default=1, help="runs to train at the same time")

    def parse_options(self) -> argparse.Namespace:
        options = self.parse_args()
        if options.data is not None and options.work is None:
            self.error("--work must name a folder for the runs")
        return options


def train_missing(
    options: argparse.Namespace,
    out: Path,
    folder: str,
    keys: Iterable[Key],
    command: Callable[..., Sequence[object]],
    fields: Callable[[Path, dict[str, Any]], Mapping[str, Any]],
) -> None:
    """Train the runs that a results file lacks with `lambdanets`, and write the result of each when it is finished.

    folder: name of a run folder, such as "{recipe}-seed{seed}". command: arguments of `lambdanets` from a key, without
    --run. fields: what to store beside RUN_FIELDS, from the run folder and its result.json.

    An unfinished run resumes, a finished one is not trained again, and one with another recipe fails. The other runs
    are trained in spite of failures; then SystemExit is raised.
    """
    missing = [key for key in keys if not any(key.items() <= run.items() for run in stored_runs(out))]
    runs = {options.work / folder.format(**key).replace(" ", "-").replace(",", ""): key for key in missing}
    commands = {run: [*map(str, command(**key)), "--run", str(run)] for run, key in runs.items()}
    failed = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPool(options.jobs) as pool:
        for run, code in pool.imap_unordered(_run, commands.items()):
            if code:
                failed.append(f"{run} (exit code {code})")
                continue
            result, key = read_results(run / "result.json"), runs[run]
            row = {**key, "jobs": options.jobs, **{name: result[name] for name in RUN_FIELDS}, **fields(run, result)}
            rows = sorted([*stored_runs(out), row], key=lambda each: [each[name] for name in key])
            write_json(out, {"runs": rows})
    if failed:
        raise SystemExit(f"failed runs, which the results do not have: {', '.join(failed)}")


def _run(command: tuple[Path, Sequence[str]]) -> tuple[Path, int]:
    run, arguments = command
    return run, subprocess.run([sys.executable, "-m", "lambdanets", *arguments], check=False).returncode


def stored_runs(out: Path) -> list[dict[str, Any]]:
    """The runs in a results file; none without a file."""
    return read_results(out)["runs"] if out.exists() else []


def seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    count = len({run["seed"] for run in runs})
    return f"mean ± std of {count} seeds" if count > 1 else "one seed"
