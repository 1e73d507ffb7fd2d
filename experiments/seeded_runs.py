"""Training runs of scripts that compare networks over seeds, and the file with their results."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any


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


def store(out: Path, key: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Write a run, which `key` identifies, to a results file; it replaces a run with the same key."""
    kept = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []
    kept = [run for run in kept if any(run[name] != value for name, value in key.items())]
    runs = sorted([*kept, {**key, **fields}], key=lambda run: [run[name] for name in key])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"runs": runs}, indent=1) + "\n", encoding="utf-8")
