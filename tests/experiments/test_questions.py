"""The answers of experiments/questions.py: corrected p-values, and networks that differ only in the layer."""

import pytest
import torch

import lambdanets
from scripts import load_script


def test_holm_corrects_the_smallest_p_value_most():
    holm = load_script("experiments/questions.py").holm
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_question_is_answered_only_if_the_corrected_p_value_is_small():
    answer = load_script("experiments/questions.py").answer
    assert [answer([1, 2], 0.049), answer([-1, -2], 0.049), answer([1, 2], 0.05)] == ["yes", "no", "undecided"]


def test_mixers_with_the_same_seed_have_equal_initial_weights():
    networks = []
    for mixer in ("convolution", "lambda"):
        torch.manual_seed(3)
        networks.append(lambdanets.create_model("resnet20_mixer_small", mixer=mixer, pattern="CCLL").state_dict())
    shared = [name for name, x in networks[0].items() if name in networks[1] and x.shape == networks[1][name].shape]
    assert len(shared) > 100
    assert all(networks[0][name].equal(networks[1][name]) for name in shared)
