"""The examples run end to end and learn their tasks."""

import math
import random

import pytest
import torch

from convergence import train_until
from scripts import load_script
from training.runs import SEED


@pytest.mark.slow
def test_character_model_is_better_with_the_position_term(monkeypatch, capsys):
    module = load_script("examples/character_model.py")
    generator = random.Random(0)
    text = "".join(4 * "".join(generator.choices("abcdefgh", k=6)) for _ in range(1000))  # repeats six characters
    monkeypatch.setattr(module, "read_text", lambda: (text[:-3000], text[-3000:]))
    sizes = {"width": 32, "depth": 1, "scope": 15, "length": 64, "batch_size": 16, "generated": 40}

    def has_converged(bits):
        content, position = bits["content only"], bits["content and position"]
        assert all(math.isfinite(b) for b in content + position)
        both_improved = content[-1] < content[0] and position[-1] < position[0]
        return both_improved and position[-1] < content[-1] - 0.5

    train_until(has_converged, lambda times: module.main(steps=40 * times, seed=SEED, **sizes))
    assert "logits of decoding and of a full forward pass differ by at most" in capsys.readouterr().out


@pytest.mark.slow
def test_graph_model_learns_labels_only_with_edges():
    module = load_script("examples/graph.py")

    def has_converged(results):
        content, edges = results["content only"], results["content and edges"]
        assert all(math.isfinite(loss) for loss in content["losses"] + edges["losses"])
        assert content["held out"] < 0.55  # colors are independent of the labels
        return min(edges["held out"], edges["twice as large"]) > 0.8

    train_until(has_converged, lambda times: module.main(steps=100 * times, seed=SEED, max_nodes=16))


def test_graph_model_is_independent_of_padding():
    module = load_script("examples/graph.py")
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
    module = load_script("examples/video.py")
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
