import json
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from commands import error_lines
from lambdanets import cli
from lambdanets.cli.options import program
from lambdanets.errors import InputError
from lambdanets.files import is_output
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training import run
from lambdanets.work import WorkFolder
from lambdanets_lab.studies.catalog import MODEL
from lambdanets_lab.studies.execution import begin, make_plan, read_results, train_all
from training.runs import at_step

FIELDS = {"image_size": 8, "channels": 3, "epochs": 1, "batch_size": 8, "warmup_epochs": 0}


@pytest.fixture
def recipe(two_classes):
    """A recipe of two steps."""
    return replace(DIGITS, data=str(two_classes), model=MODEL, model_options={"pattern": "CCCL"}, **FIELDS)


def recipe_options(recipe):
    """The command-line options of the recipe."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in FIELDS.items()]
    return ["--data", recipe.data, *options, "--model-options", "pattern", "CCCL"]


def compare(recipe, out, *variants):
    """The command that trains variants of the study "scope" with one seed."""
    return ["compare", "scope", *recipe_options(recipe), "--variants", *variants, "--seeds", "0", "--out", str(out)]


def test_studies_share_the_runs_of_identical_variants(recipe):
    plan = make_plan(["content_position", "normalization"], [], [0, 1], recipe)
    runs = [(planned_run.variant, planned_run.seed) for planned_run in plan.runs()]
    assert len(runs) == len(set(runs)) == 2 * 7
    assert runs.count(("lambda", 0)) == 1
    assert [seed for _, seed in runs] == [0] * 7 + [1] * 7


def test_compare_writes_runs_results_tables_and_figures(recipe, tmp_path, monkeypatch, capsys):
    data, out = Path(recipe.data), tmp_path / "out"
    monkeypatch.chdir(data.parent.parent)
    recipe = replace(recipe, data=f"{data.parent.name}/{data.name}")  # relative
    options = ["--variants", "3x3", "7x7", "--seeds", "0", "1", "--out", str(out)]
    recipe_words = [*recipe_options(recipe), "--decay", "0.9"]
    assert cli.main(["compare", "scope", *recipe_words, *options]) == 0
    names = {path.name for path in out.iterdir()}
    assert names >= {"plan.json", "results.json", "comparison.md", "scope.png", "runs"}
    assert is_output(names)
    results = json.loads((out / "results.json").read_text())
    assert results["finished"]
    runs = [(run["variant"].removeprefix("lambda scope="), run["seed"]) for run in results["runs"]]
    assert runs == [("3", 0), ("7", 0), ("3", 1), ("7", 1)]
    assert results["runs"][0]["data"].startswith(data.name)
    text, errors = capsys.readouterr()
    assert text.count("classes: 2") == 1
    assert errors.count("decay and decay_epochs have no effect") == 1
    assert "[4/4] lambda scope=7, seed 1: top-1" in text
    assert f"written to {out}: results.json, comparison.md" in text
    table = (out / "comparison.md").read_text()
    assert table in text
    assert cli.main(["compare", "--report", str(out / "results.json")]) == 0
    assert capsys.readouterr().out == table


def test_locked_runs_are_skipped_and_resuming_trains_only_them(recipe, tmp_path, capsys):
    plan = make_plan(["scope"], ["3x3", "7x7"], [0], recipe)
    out = tmp_path / "out"
    begin(plan, out)
    content = json.loads((out / "plan.json").read_text())
    del content["recipe"]["sync_batch_norm"]  # as if this version had added it: an older comparison resumes
    (out / "plan.json").write_text(json.dumps(content))
    with WorkFolder(plan.runs()[0].folder(out)).open():
        assert cli.main(compare(recipe, out, "3x3", "7x7")) == 0
    assert "1 run in progress in other processes" in capsys.readouterr().out
    assert [r.variant for r in read_results(plan, out)] == ["lambda scope=7"]
    assert not json.loads((out / "results.json").read_text())["finished"]
    assert [result.variant for _, result in train_all(plan, out)] == ["lambda scope=3"]
    assert [result.variant for result in read_results(plan, out)] == ["lambda scope=3", "lambda scope=7"]


def test_a_run_that_diverges_does_not_stop_the_others(recipe, tmp_path, monkeypatch, capsys):
    start, out = run.start, tmp_path / "out"

    def diverge(recipe, *arguments, **options):
        if recipe.model_options["scope"] == 3:
            raise InputError("the loss became nan")
        return start(recipe, *arguments, **options)

    monkeypatch.setattr(run, "start", diverge)
    *_, failure, error = error_lines(capsys, *compare(recipe, out, "3x3", "7x7"))
    assert failure == "lambda scope=3, seed 0: the loss became nan"
    assert error == f"lambdanets: 1 run of 2 failed, first {failure}"
    assert [each["variant"] for each in json.loads((out / "results.json").read_text())["runs"]] == ["lambda scope=7"]


def test_a_comparison_resumes_with_other_options_that_do_not_change_the_results(recipe, tmp_path):
    plan = make_plan(["scope"], ["3x3"], [0], recipe)
    begin(plan, tmp_path / "out")
    begin(replace(plan, recipe=replace(recipe, workers=1, max_unreadable=2, micro_batch=4)), tmp_path / "out")
    with pytest.raises(InputError, match="epochs must be 1, got 2, since"):
        begin(replace(plan, recipe=replace(recipe, epochs=2)), tmp_path / "out")


def test_interrupted_comparison_prints_the_resume_command(recipe, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = compare(recipe, out, "3x3")
    at_step(monkeypatch, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert cli.main(arguments) == 130
    assert f"resume with: {program()} {shlex.join(arguments)}\n" in capsys.readouterr().err
    assert not [*out.rglob("result.json")]


def test_a_signal_ends_the_check_of_all_variants(recipe, tmp_path, monkeypatch):
    checked = []

    def prepare(recipe, world):
        checked.append(recipe)
        signal.raise_signal(signal.SIGINT)
        return recipe, None, None

    monkeypatch.setattr(run, "prepare", prepare)
    assert cli.main(compare(recipe, tmp_path / "out", "3x3", "7x7")) == 130
    assert len(checked) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", '{"kind": "comparison", "runs": ['),
        ("results.json", '{"kind": "layer", "runs": []}'),
        ("plan.json", '{"studies": ["scope"'),
        ("runs/lambda-scope=3-seed0/result.json", '{"top1": 0.5}'),
        ("runs/lambda-scope=3-seed0/metrics.csv", "split,top1\nval,x\n"),
    ],
)
def test_damaged_and_other_files_are_named_in_one_line(name, content, recipe, tmp_path, capsys):
    out = tmp_path / "out"
    plan = make_plan(["scope"], ["3x3"], [0], recipe)
    begin(plan, out)
    (run,) = plan.runs()
    run.folder(out).mkdir(parents=True)
    result = {"top1": 0.5, "seconds": 1.0, "parameters": 1, "model_name": "m", "data": "d", "commit": None}
    result |= dict.fromkeys(("training_images", "validation_images", "epochs"), 1) | {"versions": {}, "hardware": {}}
    (run.folder(out) / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (out / name).write_text(content, encoding="utf-8")
    command = ["compare", "--report", out / name] if name == "results.json" else compare(recipe, out, "3x3")
    (error,) = error_lines(capsys, *command)
    problem = "must be results.json of lambdanets compare" if name == "results.json" else "is damaged"
    assert f"{out / name} {problem}: " in error
