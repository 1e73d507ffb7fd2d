"""The examples run end to end and learn their tasks."""

import math

import pytest
import torch

from convergence import train_until
from scripts import load_script
from training.runs import SEED


def load(name):
    return load_script(f"examples/{name}.py")


@pytest.fixture
def character_model(monkeypatch):
    """The script, with less text."""
    module = load("character_model")
    text, held_out = module.read_text()
    monkeypatch.setattr(module, "read_text", lambda: (text[:200_000], held_out[:3000]))
    return module


@pytest.mark.slow
def test_character_model_is_better_with_the_position_term(character_model, capsys):
    sizes = {"width": 48, "depth": 1, "scope": 15, "length": 64, "batch_size": 16, "generated": 40}

    def has_converged(bits):
        content, position = bits["content only"], bits["content and position"]
        assert all(math.isfinite(b) for b in content + position)
        both_improved = content[-1] < content[0] and position[-1] < position[0]
        return both_improved and position[-1] < content[-1] - 0.05

    train_until(has_converged, lambda times: character_model.main(steps=60 * times, seed=SEED, **sizes))
    assert "logits of decoding and of a full forward pass differ by at most" in capsys.readouterr().out


def make_character_model():
    """Return a model with random residual branches, which are zero-initialized by default."""
    torch.manual_seed(0)
    model = load("character_model").CharacterModel(20, width=32, depth=2, scope=7, position=True)
    for block in model.blocks:
        torch.nn.init.normal_(block.project[-1].weight, std=0.2)
        torch.nn.init.normal_(block.mlp[-1].weight, std=0.2)
    return model


def test_character_model_decoding_equals_a_full_forward_pass():
    model = make_character_model().double().eval()
    text = torch.randint(20, (3, 50))
    states = model.start(3)
    for position, expected in enumerate(model(text).unbind(1)):
        logits, states = model.step(text[:, position], states)
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


def test_character_model_is_causal_in_training():
    model = make_character_model().train()
    text = torch.randint(20, (3, 50))
    original = model(text)
    text[:, 30:] = (text[:, 30:] + 1) % 20
    changed = model(text)
    torch.testing.assert_close(changed[:, :30], original[:, :30], rtol=1e-5, atol=1e-5)
    assert (changed[:, 30:] - original[:, 30:]).abs().max() > 0.1


@pytest.mark.slow
def test_graph_model_learns_labels_only_with_edges():
    module = load("graph")

    def has_converged(results):
        content, edges = results["content only"], results["content and edges"]
        assert all(math.isfinite(loss) for loss in content["losses"] + edges["losses"])
        assert content["held out"] < 0.55  # colors are independent of the labels
        return min(edges["held out"], edges["twice as large"]) > 0.8

    train_until(has_converged, lambda times: module.main(steps=100 * times, seed=SEED, max_nodes=16))


def test_graph_labels_compare_red_friends_and_red_foes():
    module = load("graph")
    graphs = module.make_graphs(20, 10, torch.Generator().manual_seed(0))
    assert set(graphs["labels"][graphs["valid"]].tolist()) == {0, 1, 2}
    for example, node in graphs["valid"].nonzero().tolist():
        friends, foes = (
            sum(graphs["colors"][example, neighbor].item() == module.RED for neighbor in neighbors.nonzero())
            for neighbors in graphs["adjacent"][example, :, node]
        )
        assert graphs["labels"][example, node] == (friends > foes) + (friends >= foes)


def test_graph_model_is_independent_of_padding():
    module = load("graph")
    torch.manual_seed(0)
    model = module.GraphModel(16, 2, position=True)
    for projection in model.projections:  # zero-initialized by default
        torch.nn.init.normal_(projection[-1].weight)
    graphs = module.make_graphs(5, 12, torch.Generator().manual_seed(0))
    valid = graphs["valid"]
    expected = model(graphs["colors"], graphs["adjacent"], valid)[valid]
    padded = {
        "colors": torch.nn.functional.pad(graphs["colors"].where(valid, 3), (0, 4), value=2),
        "adjacent": torch.nn.functional.pad(graphs["adjacent"], (0, 4, 0, 4)),
        "valid": torch.nn.functional.pad(valid, (0, 4)),
    }
    torch.testing.assert_close(model(**padded)[padded["valid"]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_video_model_learns_the_direction_of_motion(monkeypatch):
    module = load("video")
    training_size, other_size = (6, 8, 8), (6, 12, 10)
    monkeypatch.setattr(module, "TRAINING_SIZE", training_size)
    monkeypatch.setattr(module, "OTHER_SIZES", [other_size])

    def has_converged(results):
        losses = results["losses"]
        assert all(math.isfinite(loss) for loss in losses)
        # chance is 0.125; with the default steps: 0.99 forwards, 0.99 backwards with opposite labels, 0 backwards
        accuracies_by_size = [results[size] for size in (training_size, other_size)]
        return sum(losses[-5:]) < 0.9 * sum(losses[:5]) and all(
            min(accuracies["forwards"], accuracies["backwards, opposite direction"]) > 0.3
            and accuracies["backwards"] < 0.1
            for accuracies in accuracies_by_size
        )

    train_until(has_converged, lambda times: module.main(steps=80 * times, seed=SEED, width=16, held_out_clips=200))


def test_character_model_runs_with_one_step(character_model):
    assert character_model.main(steps=1, batch_size=2, width=8, depth=1, length=64, generated=3)


@pytest.mark.parametrize(("name", "sizes"), [("graph", {"max_nodes": 6}), ("video", {"width": 8, "held_out_clips": 2})])
def test_other_examples_run_with_one_step(name, sizes):
    assert load(name).main(steps=1, batch_size=2, **sizes)
