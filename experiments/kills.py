"""Kills every resumable command at random times, resumes it, and compares its files with an uninterrupted run's.

    PYTHONPATH=src:lab python experiments/kills.py --kills 20 [--commands NAME ...] [--out FILE]
    PYTHONPATH=src:lab python experiments/kills.py [--page docs/faults.md]                   write the page's table

A command gets SIGKILL (at a random time, in the middle of writing a file, or before a rename), SIGTERM or SIGINT, in a
new folder, up to three times; then it runs to the end. Its files must equal those of the uninterrupted command bit by
bit, except for times. After SIGTERM and SIGINT it must end within 30 s with exit code 130, without a traceback, and
leave no hidden file. Each command is also started twice at once.
"""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pages import RESULTS, ROOT, PageScript, read_results, replace_section

from lambdanets import cli
from lambdanets.models.weights import read_weights
from lambdanets.provenance import provenance
from lambdanets.records import write_json
from lambdanets.signals import handle_signals
from lambdanets.training import callbacks
from lambdanets_lab.markdown import markdown_table

sys.path.append(str(ROOT / "tests"))
from noise_images import write_two_classes

HALF_FILE, RENAME = "half a file", "a rename"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMIT, LIMIT_OF_IMPORTS = 300, 30  # seconds of a command
KILLS_PER_RUN = 3
TRAIN = (
    "--channels 3 --image-size 8 --epochs 3 --batch-size 8 --micro-batch 4 --learning-rate 0.03 --drop-path 0.2 "
    "--dropout 0.1 --flip 0.5 --rand-augment rand-m5-n1 --ema-decay 0.9 --checkpoint-every 1"
)
LAYER = "--shapes 4x5x8 6x5x8 --scopes 3 --batch-size 2 --repeats 3 --seconds 0.05 --device cpu"


@dataclass(frozen=True)
class Command:
    """A command of `lambdanets` that can be resumed. {} is the output path.

    work: pattern of the files by which finished work is recognized. with_times: files that are not compared.
    """

    arguments: str
    work: str
    with_times: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kill:
    """A signal after some seconds, or at the count-th event: HALF_FILE or RENAME."""

    signal: int
    seconds: float = 0.0
    event: str = ""
    count: int = 1


def commands(scratch: Path) -> dict[str, Command]:
    """The resumable commands by name, on small data."""
    images, run, detector, shards, labels = (scratch / x for x in ("images", "run", "detector", "shards", "labels"))
    times = ("result.json",)
    return {
        "train": Command(f"train digits --data {images} {TRAIN} --run {{}}", "checkpoints/last.ckpt", times),
        "compare": Command(
            f"compare scope --data {images} {TRAIN} --seeds 0 --variants 3x3 7x7 --out {{}}",
            "**/last.ckpt",
            (*times, "results.json"),
        ),
        "predict": Command(f"predict {run} {images} --out {{}}", "*.partial"),
        "predict objects": Command(f"predict {detector} {images} --score 0 --out {{}}", "*.partial"),
        "shard": Command(f"shard {images} {{}} --images-per-shard 3 --threads 2", "*.tar"),
        "pseudo-label": Command(f"pseudo-label {run} {shards} {{}}", "*.parquet"),
        "pseudo-label select": Command(
            f"pseudo-label select {labels} {{}} --confidence 0 --per-class 9", "*.parquet"
        ),
        "benchmark": Command(
            f"benchmark layer {LAYER} --candidates lambdanets convolution --out {{}}",
            "results.json",
            ("results.json", "layer.png"),
        ),
    }  # fmt: skip


def prepare(scratch: Path) -> None:
    """Create the images, trained models, shards and labels that the commands read."""
    images = write_two_classes(scratch / "images")
    for arguments in (
        f"train digits --data {images} {TRAIN} --run {scratch / 'run'}",
        f"train scattered_digits --quicktest --run {scratch / 'detector'}",
        f"shard {images} {scratch / 'shards'} --images-per-shard 3",
        f"pseudo-label {scratch / 'run'} {scratch / 'shards'} {scratch / 'labels'}",
    ):
        code, _, output = run(arguments.split(), scratch / "log")
        assert code == 0, output


def start(arguments: list[str], log: Path, kill: Kill | None = None) -> subprocess.Popen[bytes]:
    """Start a command, which kills itself, in a process with one thread."""
    planned = json.dumps(None if kill is None else asdict(kill))
    command = [sys.executable, str(Path(__file__)), "--child", planned, *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1"})


def run(arguments: list[str], log: Path, kill: Kill | None = None) -> tuple[int, float, str]:
    """Run a command, and kill it; returns exit code (negative: signal), seconds, and output."""
    begin = time.perf_counter()
    code = start(arguments, log, kill).wait(LIMIT)
    return code, time.perf_counter() - begin, log.read_text(errors="replace")


def run_child(planned: str, arguments: list[str]) -> None:
    """Run a command in this process, with its kill."""
    with handle_signals():  # before the kill, which may come at once, and while the command ends
        if (fields := json.loads(planned)) is not None:
            kill = Kill(**fields)
            if kill.event:
                _kill_at_event(kill)
            else:
                timer = threading.Timer(kill.seconds, os.kill, (os.getpid(), kill.signal))
                timer.daemon = True
                timer.start()
        code = cli.main(arguments)
        sys.stdout.flush()
        os._exit(code)  # the signal may arrive while Python shuts down


def _kill_at_event(kill: Kill) -> None:
    """Patch this process to kill itself when half of a file is written, or before a rename."""
    owner: Any = os if kill.event == HALF_FILE else Path
    name = "fsync" if kill.event == HALF_FILE else "replace"
    original, calls, process = getattr(owner, name), iter(range(1, kill.count)), os.getpid()

    def patched(subject: Any, *args: Any) -> Any:
        if next(calls, None) is not None:
            return original(subject, *args)
        if kill.event == HALF_FILE:
            os.ftruncate(subject, os.fstat(subject).st_size // 2)
        os.kill(process, kill.signal)
        return os.kill(os.getpid(), kill.signal)  # if this is a worker process

    setattr(owner, name, patched)


def read_outputs(out: Path, with_times: tuple[str, ...] = ()) -> dict[str, Any]:
    """The bytes of the output files by name; empty for figures, files with times, and all checkpoints but the best.

    Of metrics.csv, the rows without the columns of speed and memory.
    """
    paths = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    contents: dict[str, Any] = {}
    for path in paths:
        name = path.relative_to(out).as_posix()
        if path.name == "best.ckpt":
            state = read_weights(path)[1]["state_dict"]
            contents[name] = {key: tensor.numpy().tobytes() for key, tensor in state.items()}
        elif path.name == callbacks.METRICS:
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            contents[name] = [{k: v for k, v in row.items() if k not in callbacks.SPEED} for row in rows]
        elif "tensorboard" not in path.parts:
            is_ignored = path.suffix in (".png", ".ckpt") or path.name in with_times
            contents[name] = b"" if is_ignored else path.read_bytes()
    return contents


def check_equal(command: Command, reference: Path, out: Path) -> None:
    """Raise AssertionError unless the files of two runs of a command are equal."""
    expected, actual = (read_outputs(path, command.with_times) for path in (reference, out))
    assert actual.keys() == expected.keys(), f"{out} ended with other files: {actual.keys() ^ expected.keys()}"
    for name, content in expected.items():
        if isinstance(content, bytes):
            content = content.replace(bytes(reference.parent), bytes(out.parent))
        assert actual[name] == content, f"{out} ended with a different {name}"


def kill_and_check(command: Command, reference: Path, folder: Path, kills: list[Kill]) -> list[dict[str, Any]]:
    """Start a command and kill it, several times, in a new folder; run it to the end, and check messages and files.

    reference: output path of the uninterrupted command.
    """
    folder.mkdir()
    out, log, results = folder / reference.name, folder.with_suffix(".log"), []
    for kill in [*kills, None]:
        code, seconds, output = run(command.arguments.format(out).split(), log, kill)
        was_complete = code == 2 and "exists; choose another" in output
        assert code in (0, 130, -signal.SIGKILL) or was_complete, f"ended with {code}:\n{output}"
        assert "Traceback" not in output, output
        assert "Exception ignored" not in output, output
        if code == 130 and kill is not None:
            assert seconds - kill.seconds < 30 + LIMIT_OF_IMPORTS, f"took {seconds:.0f} s to end:\n{output}"
            left = [path.name for path in folder.rglob(".*") if "unfinished" in path.name or path.name == ".lock"]
            assert not left or any(each["signal"] == signal.SIGKILL for each in results), f"{left}:\n{output}"
        if code in (0, 2) or kill is None:
            break
        work = len([*folder.rglob(command.work)])
        unfinished = any(folder.rglob(".*.unfinished"))
        results.append(vars(kill) | {"code": code, "finished": work, "unfinished": unfinished})
    assert code != 130, output
    check_equal(command, reference, out)
    shutil.rmtree(folder)
    return results


def start_twice(command: Command, reference: Path, folder: Path) -> None:
    """Start a command twice at once: one must do the work, and the other must be rejected, or share it."""
    folder.mkdir()
    out, logs = folder / reference.name, [folder.with_suffix(f".{number}.log") for number in range(2)]
    children = [start(command.arguments.format(out).split(), log) for log in logs]
    codes = [child.wait(LIMIT) for child in children]
    outputs = [log.read_text(errors="replace") for log in logs]
    assert sorted(codes) in ([0, 0], [0, 2]), f"exit codes {codes}:\n" + "\n".join(outputs)
    if 2 in codes:
        assert re.search("is in use by|exists|another folder", outputs[codes.index(2)]), outputs
    check_equal(command, reference, out)
    shutil.rmtree(folder)


def draw_kill(generator: random.Random, seconds: float) -> Kill:
    """Draw a kill of a command that takes some seconds."""
    number = generator.choice((*SIGNALS, signal.SIGKILL, signal.SIGKILL))
    event = generator.choice(("", HALF_FILE, RENAME)) if number == signal.SIGKILL else ""
    return Kill(number, round(generator.uniform(0, seconds), 3), event, generator.randint(1, 6))


def section(result: dict[str, Any]) -> str:
    """The table of commands, and a summary of the kills."""
    kills = result["kills"]
    rows = [
        [f"`{name}`", *(str(sum(kill["signal"] == number for kill in kills[name])) for number in SIGNALS)]
        for name in kills
    ]
    every = [kill for each in kills.values() for kill in each]
    events = Counter(kill["event"] for kill in every)
    table = markdown_table(["command", *(signal.Signals(number).name for number in SIGNALS)], *rows)
    return (
        f"{table}\n\nOf {len(every)} kills, {events[HALF_FILE]} were in the middle of writing a file and "
        f"{events[RENAME]} before a rename, the others at a random time;\n"
        f"{sum(kill['finished'] > 0 for kill in every)} commands had finished work, and "
        f"{sum(kill['unfinished'] for kill in every)} left an unfinished file, which the next start replaced.\n"
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], sys.argv[3:])
    parser = PageScript(__doc__, "faults.md")
    parser.add_argument("--out", type=Path, default=RESULTS / "xeon-2-cores/kills.json", help="results file")
    parser.add_argument("--kills", type=int, help="number per command")
    names = [*commands(Path())]
    parser.add_argument("--commands", nargs="+", default=names, choices=names, metavar="NAME", help="all by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.kills is None:
        replace_section(options.page, "kills", section(read_results(options.out)))
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT for background processes
    generator = random.Random(options.seed)
    kills_by_command = read_results(options.out)["kills"] if options.out.is_file() else {}  # of other commands are kept
    result: dict[str, Any] = {"kills": kills_by_command, "seed": options.seed}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        prepare(scratch)
        _, imports, _ = run(["--version"], scratch / "log")
        (scratch / "reference").mkdir()
        for name, command in commands(scratch).items():
            if name not in options.commands:
                continue
            reference = scratch / "reference" / name.replace(" ", "-")
            code, seconds, output = run(command.arguments.format(reference).split(), scratch / "log")
            assert code == 0, output
            start_twice(command, reference, scratch / f"{reference.name}-twice")
            kills: list[dict[str, Any]] = []
            while len(kills) < options.kills:
                count = min(KILLS_PER_RUN, options.kills - len(kills))
                draws = [draw_kill(generator, seconds - imports) for _ in range(count)]
                kills += kill_and_check(command, reference, scratch / f"{reference.name}-{len(kills)}", draws)
            result["kills"][name] = kills
            print(f"{name}: {len(kills)} kills, each resumed bit-identically", flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(options.out, result | provenance())  # after each command, because all take half an hour


if __name__ == "__main__":
    main()
