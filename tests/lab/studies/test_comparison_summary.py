import json
from dataclasses import asdict, replace

import pytest
from PIL import Image

from lambdanets.errors import InputError
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets_lab.studies.catalog import STUDIES
from lambdanets_lab.studies.execution import RunResult, make_plan
from lambdanets_lab.studies.results import collect, markdown, read_comparison, study_rows, write_summary


@pytest.fixture
def plan():
    paths = {"data": "/data/of/someone/images", "weights": "/data/of/someone/run"}
    recipe = replace(DIGITS, **paths, model="resnet20_mixer_small", epochs=2)
    return make_plan(["content_position"], ["content only", "position only"], [3, 5], recipe)


def result(variant, seed, top1):
    return RunResult(
        variant=variant,
        seed=seed,
        top1=top1,
        top1_by_epoch=[top1 / 2, top1],
        parameters=1234,
        model_name="resnet20_mixer_small",
        data="images, 5 of 25 images held out with the seed of the run",
        training_images=20,
        validation_images=5,
        epochs=2,
        commit="abc",
        versions={"torch": "2"},
        hardware={"processor": "p", "gpu": None},
    )


@pytest.fixture
def results():
    content, position = "lambda position=False", "lambda content=False"
    return [result(content, 3, 0.5), result(position, 3, 0.7), result(content, 5, 0.6), result(position, 5, 0.8)]


def test_unfinished_comparison_is_marked_and_single_runs_are_last(plan, results):
    summary = collect(plan, results[:3])
    assert not summary.finished
    assert "not finished" in markdown(summary)
    rows = study_rows("content_position", summary)
    assert [len(row.top1) for row in rows] == [2, 1]
    assert rows[0].mean < rows[1].mean


def write(summary, path):
    path.write_text(json.dumps(asdict(summary)), encoding="utf-8")
    return path


def test_merged_results_of_two_seeds_are_those_of_one_comparison(plan, results, tmp_path):
    results[2] = replace(results[2], hardware={"processor": "q", "gpu": None})
    parts = [
        write(collect(replace(plan, seeds=(seed,)), [r for r in results if r.seed == seed]), tmp_path / str(seed))
        for seed in plan.seeds
    ]
    merged, whole = read_comparison(*parts), read_comparison(write(collect(plan, results), tmp_path / "whole"))
    assert replace(merged, runs=whole.runs) == whole
    assert sorted(merged.rows, key=str) == sorted(whole.rows, key=str)
    assert "trained on p (seeds 3, 5) and q (seed 5)" in markdown(merged)


def test_rejects_merging_different_setups_or_the_same_runs(plan, results, tmp_path):
    def check(message, first, second):
        with pytest.raises(InputError, match=message):
            read_comparison(write(first, tmp_path / "a.json"), write(second, tmp_path / "b.json"))

    summary = collect(plan, results)
    check(r"must have different runs, got lambda position=False, seed 3 twice: .*b\.json", summary, summary)
    other = collect(replace(plan, recipe=replace(plan.recipe, learning_rate=0.5, workers=3)), results)
    check(r"a\.json and .*b\.json must have recipes with the same learning_rate, got 0\.1 and 0\.5", summary, other)
    longer = replace(summary, recipe=summary.recipe | {"epochs": 30})
    check("must have recipes with the same epochs, got 2 and 30", summary, longer)


def test_merges_runs_that_stopped_early_after_other_numbers_of_epochs(plan, results, tmp_path):
    plan = replace(plan, recipe=replace(plan.recipe, patience=3, micro_batch=8))
    first = collect(plan, results[:2])
    others = [replace(run, epochs=7) for run in results[2:]]
    second = collect(replace(plan, recipe=replace(plan.recipe, micro_batch=16)), others)
    merged = read_comparison(write(first, tmp_path / "a.json"), write(second, tmp_path / "b.json"))
    assert len(merged.runs) == 4
    assert "epochs: at most 2," in markdown(merged)


@pytest.mark.figures
def test_draws_one_figure_per_study_and_writes_no_local_paths(plan, results, tmp_path):
    write_summary(collect(plan, results), tmp_path)
    assert "/data/of" not in (tmp_path / "results.json").read_text()
    for name in ("content_position.png", "content_position_curves.png"):
        with Image.open(tmp_path / name) as figure:
            assert figure.width > 500


def test_paper_accuracies_agree_with_the_papers_tables():
    from lambdanets_lab.tables.paper import select_numbers

    table = {"content_position": "9", "scope": "10", "normalization": "11"}
    for study, number in table.items():
        top1 = {entry.value for entry in select_numbers([number]) if entry.column == "top-1"}
        assert {variant.paper_top1 for variant in STUDIES[study].variants.values()} <= top1, study
    top1 = {entry.value for entry in select_numbers(["3", "4"]) if entry.column == "top-1"}
    assert {v.paper_top1 for v in STUDIES["mixers"].variants.values() if v.paper_top1} <= top1
