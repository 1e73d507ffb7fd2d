"""Training runs of scripts that compare networks over seeds, and the file with their results."""

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any


def train(commands: Mapping[Path, Sequence[str]], jobs: int) -> dict[Path, dict[str, Any]]:
    """Run `lambdanets` with the arguments of each run folder, and return the results.

    The arguments must have `--run FOLDER`: an unfinished run resumes, a finished one is not trained again, and one with
    another recipe is an error. jobs: runs at the same time.
    """
    lambdanets = [sys.executable, "-m", "lambdanets"]
    with ThreadPool(jobs) as pool:
        pool.map(
            functools.partial(subprocess.run, check=True), [[*lambdanets, *options] for options in commands.values()]
        )
    return {run: json.loads((run / "result.json").read_text(encoding="utf-8")) for run in commands}


def store(out: Path, runs: Sequence[dict[str, Any]], key: Sequence[str], **common: Any) -> None:
    """Write runs to a results file in place of those with the same values of `key`; the others are kept."""
    kept = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []
    new = [[run[name] for name in key] for run in runs]
    kept = [run for run in kept if [run[name] for name in key] not in new]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"runs": [*kept, *runs], **common}, indent=1) + "\n", encoding="utf-8")
