"""The bad inputs of experiments/bad_inputs that are rejected quickly."""

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
def places(scratch):
    places = bad_inputs.Places(scratch / "places")
    (scratch / "places").mkdir()
    yield places
    places.close()


@pytest.mark.forks
@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: re.sub(r"\W+", "-", str(entry))[-60:])
def test_rejects_bad_input_in_one_sentence_and_leaves_no_file(entry, places, scratch, request):
    outcome = bad_inputs.attempt(entry, scratch / request.node.name / "here", places, scratch, limit=60)
    assert not outcome.faults, outcome.errors
