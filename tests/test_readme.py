"""The README's code and commands are what they say."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from lambdanets import calibration, cli
from lambdanets.arguments import parse
from lambdanets.cli import detect, evaluate, predict, pseudo_label, shard
from lambdanets.data.shards.command import Shard
from lambdanets.evidence.benchmark import command as benchmark
from lambdanets.evidence.studies import command as comparison
from lambdanets.evidence.studies import summary
from lambdanets.evidence.tables import command as reproduction
from lambdanets.ops.position.rates import built_in
from lambdanets.training import launching, run
from lambdanets.training.classification import plan as planning
from lambdanets.training.classification import quicktest
from lambdanets.training.pseudo_labels.select_command import Select

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
SHELL = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
SHELL += re.findall(r"`(lambdanets [^`]*)`", README)


def test_the_python_examples_run_and_print_the_shapes_they_say(capsys):
    example, resizing = [block for kind, block in BLOCKS if kind == "python"]
    exec(resizing, names := {})
    assert {tuple(p.shape) for n, p in names["model"].named_parameters() if n.endswith("table")} == {(23, 23, 16)}
    exec(example, {})
    assert "[2, 64, 29, 20]" in capsys.readouterr().out
    assert len([line for line in example.splitlines() if line and not line.startswith("import")]) <= 10


@pytest.mark.parametrize("command", [line for line in SHELL if line.startswith("lambdanets ")])
def test_every_command_is_taken(command, monkeypatch):
    done = []
    result = {"model_name": "m", "parameters": 1, "data": "d", "epochs": 1, "seconds": 1.0, "images_per_second": 1.0}
    result |= {"bbox": {"AP": 1.0}, "segm": {"AP": None}}
    monkeypatch.setattr(
        run, "start", lambda recipe, folder: done.append(recipe) or result | {"top1": 1.0, "unreadable": []}
    )
    monkeypatch.setattr(run, "resume", lambda folder: done.append(folder) or result | {"top1": 1.0, "unreadable": []})
    monkeypatch.setattr(benchmark, "run", lambda kind, options: done.append(options))
    for name in ("start", "go_on"):
        monkeypatch.setattr(comparison, name, lambda *given: done.append(given))
    monkeypatch.setattr(summary, "read_summary", lambda path: done.append(path))
    monkeypatch.setattr(summary, "markdown", lambda found: "")
    monkeypatch.setattr(reproduction, "run", lambda options: done.append(options) or 0)
    monkeypatch.setattr(calibration, "calibrate", lambda device: done.append(device) or built_in(device, 1))
    # evaluate and predict need a trained run: here their options are parsed, tests/test_cli.py runs them
    monkeypatch.setattr(planning, "plan", lambda recipe, devices: done.append(recipe) or SimpleNamespace(lines=list))
    monkeypatch.setattr(quicktest, "small", lambda recipe, folder: recipe)
    monkeypatch.setattr(launching, "launch", lambda count, arguments: done.append(arguments) or 0)
    for name, module in (("shard", shard), ("pseudo-label", pseudo_label)):
        monkeypatch.setattr(module, "main", lambda arguments, name=name: done.append(taken(name, arguments)) or 0)
    for module, options in ((evaluate, evaluate.Evaluate), (predict, predict.Predict)):
        monkeypatch.setattr(
            module,
            "main",
            lambda arguments, options=options: done.append(parse(options, arguments, description="", prog="")) or 0,
        )
    for name, options in (("evaluate", detect.Evaluate), ("predict", detect.Predict), ("report", detect.Report)):
        monkeypatch.setitem(
            detect.ACTIONS,
            name,
            lambda arguments, options=options: done.append(parse(options, arguments, description="", prog="")) or 0,
        )
    arguments = shlex.split(command, comments=True)[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
    else:
        assert cli.main(arguments) == 0
        assert len(done) == 1


def taken(name, arguments):
    """The options of a command that needs files to work on."""
    if name == "pseudo-label" and arguments[0] == "select":
        return parse(Select, arguments[1:], description="", prog="")
    return parse({"shard": Shard, "pseudo-label": pseudo_label.Label}[name], arguments, description="", prog="")
