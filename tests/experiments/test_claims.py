"""What pages say in words is what the committed results say."""

import json
import re
import statistics

import pytest

from lambdanets.cli import main
from lambdanets_lab.mixers import MIXERS
from scripts import ROOT, load_script


@pytest.fixture(scope="module")
def claims():
    return load_script("experiments/claims.py")


def text_of(page):
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_differences_in_the_summary_are_those_of_the_claims(claims):
    summary = text_of("docs/results.md")
    number = r"([+-]\d+\.\d+)"
    triples = re.findall(rf"{number} \((?:95% interval )?{number} to {number}\)", summary)
    assert len(triples) >= 4
    for values in triples:
        digits = len(values[0].partition(".")[2])
        formatted = "{} ({} to {})".format(*values)
        assert formatted in [claims.format_difference(each.differences, digits) for each in claims.accuracy()]


def test_verdict_follows_from_the_confidence_interval(claims):
    assert claims.verdict([1.0, 1.1, 0.9]) == "confirmed"
    assert claims.verdict([-1.0, -1.1, -0.9]) == "refuted"
    assert claims.verdict([1.0, -1.1, 0.9]) == claims.verdict([5.0]) == "undecided"


def test_compare_prints_the_tables_of_the_page(capsys):
    results = ROOT / "experiments/results"
    for pattern in ("xeon-2-cores/fashion_mnist.json", "epyc-2-cores/cifar10/*.json"):
        assert main(["compare", "--report", *sorted(map(str, results.glob(pattern)))]) == 0
    page = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    rows = {line for line in page.splitlines() if line.startswith("| ") and "±" in line}
    assert len(rows) > 30
    assert rows < set(capsys.readouterr().out.splitlines())


def mask_scores(name):
    runs = json.loads((ROOT / f"experiments/results/epyc-2-cores/{name}.json").read_text(encoding="utf-8"))["runs"]
    recipes = ("nuclei", "nuclei_convolution")
    return [[100 * run["segm"]["AP"] for run in runs if run["recipe"] == recipe] for recipe in recipes]


def test_pages_have_the_mask_scores_of_nuclei():
    means = [f"{statistics.mean(scores):.1f}" for scores in mask_scores("nuclei")]
    assert "mask AP {} with lambda layers and {} with 3x3 convolutions".format(*means) in text_of("README.md")
    before = [f"{statistics.mean(s):.1f} ± {statistics.stdev(s):.1f}" for s in mask_scores("nuclei_norms_not_frozen")]
    page = text_of("docs/detection_results.md")
    assert "mask AP was {} with lambda layers and {} with convolutions".format(*before) in page


def test_page_of_mixers_cites_a_paper_for_each():
    page = (ROOT / "docs/comparison.md").read_text(encoding="utf-8").split("## Mixers\n")[1]
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `")}
    assert list(rows) == list(MIXERS)
    assert all(re.search(r"(20(1[4-9]|2\d))", row) for row in rows.values())
