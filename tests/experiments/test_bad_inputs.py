"""Runs the inputs of experiments/bad_inputs that are rejected before any data is read."""

import re

import pytest

from scripts import load_script

bad_inputs = load_script("experiments/bad_inputs/__init__.py")
QUICK = [
    entry
    for group in ("options", "recipes")
    for entry in bad_inputs.GROUPS[group]
    if entry.exit_code == 2 and not re.search(r"\{|--plan|--quicktest", entry.command)
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("bad_inputs")


@pytest.fixture(scope="module")
def fixtures(scratch):
    fixtures = bad_inputs.Fixtures(scratch / "fixtures")
    (scratch / "fixtures").mkdir()
    yield fixtures
    fixtures.close()


@pytest.mark.forks
@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: re.sub(r"\W+", "-", str(entry))[-60:])
def test_rejects_bad_input_in_one_line_and_leaves_no_file(entry, fixtures, scratch, request):
    outcome = bad_inputs.run_input(entry, scratch / request.node.name / "cwd", fixtures, scratch, limit=60)
    assert not outcome.violations, outcome.stderr
