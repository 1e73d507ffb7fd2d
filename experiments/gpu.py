"""Checks and times fused kernels, layers and networks on a GPU, in 8 minutes.

First command. PyTorch with CUDA and Triton must be installed; the other packages' layers are optional:

    export PYTHONPATH=src:lab PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=runs/triton
    python experiments/gpu.py --out runs/gpu

| part | what it gives |
|---|---|
| machine | versions and hardware |
| compile | all kernels, on all cores |
| self_test | the check of every kernel in bfloat16 and float32: what `auto` may use |
| check | the position terms of LambdaResNet-50 at batch 128 first, then edges; 10 runs bit-identical |
| layers | 3x3 convolution, lambda layers by algorithm, layers of other packages; peak memory |
| networks | four networks, inference and training, eager and as a CUDA graph |
| kernels | microseconds of each kernel |
| smoke | unusual layers against query_order in float32 |

Second command, after the first or after a change, with the parts that are wanted again:

    python experiments/gpu.py --out runs/gpu2 --parts kernels --minutes 3

`--table runs/gpu/gpu.jsonl` prints measured times and everything that failed.

Each part runs in its own process and ends at its limit. A case that raises is named in a row, and the next one runs; a
corrupted CUDA context ends the part. Two files are written: rows go to gpu.jsonl as they come, standard error to
errors.txt. Without a GPU, the script tries tiny problems in Triton's interpreter (NumPy below 2.4 with Triton 3.6).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

# Parts in order of what is lost if the time ends early, with their shares of it in minutes. A part may
# also use what the parts before it have left.
PARTS = {
    "machine": 0.6,  # with the first imports on a new machine
    "compile": 1.2,
    "self_test": 1.0,
    "check": 0.9,
    "layers": 1.6,
    "networks": 0.8,
    "kernels": 1.3,
    "smoke": 0.5,
}
SECONDS_TO_STOP = 10  # for the last case of a part after its time limit
MAX_LENGTH = 160  # of a failure in the table


def run_part(name: str, out: Path, seconds: float) -> None:
    """Run a part within its time limit, and append a row with its time and failure."""
    script, start = Path(__file__).with_name("gpu_parts.py"), time.time()
    command = [sys.executable, str(script), name, "--out", str(out), "--until", f"{start + seconds:.0f}"]
    environment = dict(os.environ) | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    row: dict[str, Any] = {"part": name, "name": "whole part"}
    errors = out.with_name("errors.txt")
    with errors.open("ab") as file:
        file.write(f"\n== {name}\n".encode())
        file.flush()
        process = subprocess.Popen(command, env=environment, stderr=file, start_new_session=True)
        try:
            if code := process.wait(seconds + SECONDS_TO_STOP):
                lines = errors.read_text(errors="replace").strip().splitlines()
                row["failure"] = (lines or [f"ended with {code}"])[-1][:500]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its pool of compilers
            process.wait()
            row["failure"] = f"exceeded {seconds:.0f} s"
    with out.open("a") as file:
        file.write(json.dumps(row | {"seconds": round(time.time() - start, 1)}) + "\n")


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
    """A table of measured times, failed checks, and failures."""
    lines = []
    for row in rows:
        if "eager_us" in row:
            measured = row.get("kernel_us", row.get("graph_us", row["eager_us"]))
            lines.append(f"{row['part']:<10}{row['name'][:63]:<64}{measured:>10.1f} us")
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
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS), help="parts to run")
    parser.add_argument("--minutes", type=float, help="time limit of all parts together")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(format_table(read_rows(arguments.table)))
        return
    out = arguments.out / "gpu.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    start, minutes = time.monotonic(), sum(PARTS[name] for name in arguments.parts)
    scale = 60 * (arguments.minutes or minutes) / minutes
    for i, name in enumerate(arguments.parts):
        end = start + scale * sum(PARTS[part] for part in arguments.parts[: i + 1])
        run_part(name, out, max(end - time.monotonic(), 5))
    print(format_table(read_rows(out)))


if __name__ == "__main__":
    main()
