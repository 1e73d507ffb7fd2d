"""Checks and times fused kernels, layers and networks on a GPU in ten minutes.

    PYTHONPATH=src python experiments/gpu.py --out runs/gpu [--parts smoke kernels] [--minutes 9.5]
    PYTHONPATH=src python experiments/gpu.py --table runs/gpu/gpu.jsonl

Needs PyTorch with CUDA, and Triton. Each part runs in a separate process, so an error that corrupts the CUDA context
ends only that part. Parts append rows to gpu.jsonl; --table prints their predicted and measured times. --dry-run checks
this script on a CPU, with tiny problems in Triton's interpreter.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Parts in order, and their time limits in minutes.
PARTS = {
    "machine": 1.0,
    "compile": 2.5,
    "smoke": 1.5,
    "check": 1.5,
    "kernels": 2.0,
    "self_test": 1.5,
    "layers": 2.0,
    "networks": 2.0,
}
MAX_LENGTH = 160  # of a failure in the table


def run_part(name: str, out: Path, seconds: float, dry_run: bool) -> None:
    """Run a part within its time limit, and append a row with its time and failure."""
    script = Path(__file__).with_name("gpu_parts.py")
    command = [sys.executable, str(script), name, "--out", str(out), "--seconds", f"{seconds:.0f}"]
    environment = os.environ | {"LAMBDANETS_CACHE": str(out.parent / "cache")}
    if dry_run:
        command.append("--dry-run")
        environment["TRITON_INTERPRET"] = "1"
    start = time.monotonic()
    reason = ""
    try:
        run = subprocess.run(
            command,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds + 20,
            check=False,
        )
        if run.returncode:
            reason = (run.stderr.strip().splitlines() or [f"ended with {run.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"exceeded {seconds:.0f} s"
    row = {"part": name, "name": "whole part", "seconds": round(time.monotonic() - start, 1)}
    if reason:
        row["failure"] = reason[:500]
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows, and skip incomplete lines of killed parts."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    """A table of measured and predicted times, failed checks, and failures."""
    lines = []
    timed = [row for row in rows if "graph_us" in row or "eager_us" in row]
    if timed:
        lines.append(f"{'part':<10}{'name':<64}{'us':>10}{'predicted':>11}{'ratio':>7}")
    for row in timed:
        measured, predicted = row.get("graph_us", row.get("eager_us")), row.get("predicted_us")
        columns = f"{predicted:>11.1f}{measured / predicted:>7.2f}" if predicted else ""
        lines.append(f"{row['part']:<10}{row['name'][:63]:<64}{measured:>10.1f}{columns}")
    checks = [row for row in rows if "correct" in row]
    failed = [row for row in checks if not (row["correct"] and row.get("bit_identical", True))]
    lines.append(f"{len(checks) - len(failed)} of {len(checks)} checks are correct and bit-identical")
    lines += [f"WRONG {row['part']} {row['name']}: {json.dumps(row)[:MAX_LENGTH]}" for row in failed]
    lines += [f"FAILED {row['part']} {row['name']}: {row['failure'][:MAX_LENGTH]}" for row in rows if "failure" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--out", type=Path, help="folder of gpu.jsonl, to which rows are appended")
    group.add_argument("--table", type=Path, help="print the table of this gpu.jsonl")
    parser.add_argument(
        "--parts", nargs="*", default=list(PARTS), choices=list(PARTS), help="parts to run; default: all"
    )
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of all parts together")
    parser.add_argument("--dry-run", action="store_true", help="run tiny problems on a CPU")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(format_table(read_rows(arguments.table)))
        return
    out = arguments.out / "gpu.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    for name in arguments.parts:
        seconds = min(60 * PARTS[name], end - time.monotonic() - 20)
        if seconds < 10 and not arguments.dry_run:
            print(f"no time left for {name}")
            continue
        run_part(name, out, max(seconds, 10), arguments.dry_run)
    print(format_table(read_rows(out)))


if __name__ == "__main__":
    main()
