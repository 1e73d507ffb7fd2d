"""Checks and times fused kernels, layers and networks on a GPU, in 24 minutes, or in three calls of ten minutes.

    export PYTHONPATH=src
    python experiments/gpu.py --out runs/gpu --parts machine compile smoke check
    python experiments/gpu.py --out runs/gpu --parts self_test layers networks
    python experiments/gpu.py --out runs/gpu --parts kernels
    python experiments/gpu.py --table runs/gpu/gpu.jsonl

Needs PyTorch with CUDA, and Triton. Each part runs in a separate process. If a kernel corrupts the CUDA context, the
part starts again without this kernel. Parts append rows to gpu.jsonl and write standard error to PART.err; --table
prints predicted and measured times. Results of self-tests are cached in the user's cache folder, which must be the same
in all calls. --dry-run checks this script on a CPU, with tiny problems in Triton's interpreter.
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
    "machine": 2.0,  # with the first imports on a new machine
    "compile": 3.0,
    "smoke": 2.0,
    "check": 2.5,
    "self_test": 5.0,
    "layers": 2.5,
    "networks": 2.0,
    "kernels": 5.0,
}
BROKEN_CONTEXT = 3  # exit code of a part after a kernel has corrupted the CUDA context
MAX_LENGTH = 160  # of a failure in the table


def run_part(name: str, out: Path, seconds: float, dry_run: bool, commit: str | None = None) -> None:
    """Run a part within its time limit, and append a row with its time and failure.

    After a kernel has corrupted the CUDA context, the part continues without this kernel.
    """
    script = Path(__file__).with_name("gpu_parts.py")
    start = time.time()
    excluded: list[str] = []
    while True:
        command = [sys.executable, str(script), name, "--out", str(out), "--until", f"{start + seconds:.0f}"]
        command += [*(["--commit", commit] if commit else []), *(["--without", *excluded] if excluded else [])]
        environment = dict(os.environ)
        if dry_run:
            command.append("--dry-run")
            environment |= {"TRITON_INTERPRET": "1", "LAMBDANETS_CACHE": str(out.parent / "cache")}
        errors, reason = out.with_name(f"{name}.err"), ""
        with errors.open("ab") as file:
            try:
                limit = max(10.0, start + seconds - time.time()) + 20
                code = subprocess.run(command, env=environment, stderr=file, timeout=limit, check=False).returncode
            except subprocess.TimeoutExpired:
                code, reason = 0, f"exceeded {seconds:.0f} s"
        if code == BROKEN_CONTEXT:
            excluded.append(read_rows(out)[-1]["broken_by"])
            if time.time() < start + seconds:
                continue
        if code:
            lines = errors.read_text(errors="replace").strip().splitlines()
            reason = (lines or [f"ended with {code}"])[-1]
        break
    row = {"part": name, "name": "whole part", "seconds": round(time.time() - start, 1)}
    _append(out, row | ({"failure": reason[:500]} if reason else {}))


def _append(out: Path, row: dict[str, Any]) -> None:
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
        measured = row.get("kernel_us", row.get("graph_us", row.get("eager_us")))
        predicted = row.get("predicted_us")
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
    parser.add_argument("--minutes", type=float, default=25, help="time limit of all parts together")
    parser.add_argument("--commit", help="git commit of the code, for machines without git")
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
            _append(out, {"part": name, "name": "whole part", "failure": "not run: no time left"})
            continue
        run_part(name, out, max(seconds, 10), arguments.dry_run, arguments.commit)
    print(format_table(read_rows(out)))


if __name__ == "__main__":
    main()
