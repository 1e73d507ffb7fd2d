"""The examples run from end to end, and show what they say they show."""

import math

import pytest
import torch

from learning import train_until
from scripts import load_script
from training.runs import SEED


def load(name):
    return load_script(f"examples/{name}.py")


@pytest.mark.slow
def test_the_character_model_learns_better_with_positions_and_decodes_what_it_computes_at_once(monkeypatch, capsys):
    module = load("character_model")
    text, held_out = module.read_text()
    monkeypatch.setattr(module, "read_text", lambda: (text, held_out[:3000]))
    sizes = {"width": 48, "depth": 2, "scope": 15, "length": 64, "batch_size": 16, "generated": 40}

    def reached(bits):
        content, position = bits["content only"], bits["content and position"]
        assert all(math.isfinite(b) for b in content + position)
        learnt = content[-1] < content[0] and position[-1] < position[0]
        return learnt and position[-1] < content[-1] - 0.05  # at full length 1.2

    train_until(reached, lambda times: module.main(steps=60 * times, seed=SEED, **sizes))
    assert "step by step and all at once, logits differ by at most" in capsys.readouterr().out


def make_character_model():
    """Untrained, with branches that count: they start at zero."""
    torch.manual_seed(0)
    model = load("character_model").CharacterModel(20, width=32, depth=2, scope=7, position=True)
    for block in model.blocks:
        torch.nn.init.normal_(block.project[-1].weight, std=0.2)
        torch.nn.init.normal_(block.mlp[-1].weight, std=0.2)
    return model


def test_the_character_model_step_by_step_gives_the_same_logits():
    model = make_character_model().double().eval()
    text = torch.randint(20, (3, 50))
    states = model.start(3)
    for position, expected in enumerate(model(text).unbind(1)):
        logits, states = model.step(text[:, position], states)
        torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


def test_the_character_model_hears_nothing_of_the_future_in_training():
    model = make_character_model().train()
    text = torch.randint(20, (3, 50))
    before = model(text)
    text[:, 30:] = (text[:, 30:] + 1) % 20
    after = model(text)
    torch.testing.assert_close(after[:, :30], before[:, :30], rtol=1e-5, atol=1e-5)
    assert (after[:, 30:] - before[:, 30:]).abs().max() > 0.1


def test_the_text_held_out_is_a_tenth_and_not_trained_on():
    module = load("character_model")
    train, held_out = module.read_text()
    assert 0.09 < len(held_out) / (len(train) + len(held_out)) < 0.11
    passages = [held_out[start : start + 100] for start in range(0, len(held_out) - 100, 50)]
    # files repeat each other a little: the same checks of arguments, the same lines of a table
    assert sum(passage in train for passage in passages) < 0.02 * len(passages)


@pytest.mark.slow
def test_edges_tell_the_label_of_a_node_and_content_does_not():
    module = load("graph")

    def reached(results):
        content, edges = results["content only"], results["content and edges"]
        assert all(math.isfinite(loss) for loss in content["losses"] + edges["losses"])
        assert content["held out"] < 0.55  # which no training changes: colours say nothing of labels
        return min(edges["held out"], edges["twice as large"]) > 0.8

    train_until(reached, lambda times: module.main(steps=100 * times, seed=SEED, most_nodes=16))


def test_labels_of_graphs_follow_the_rule():
    module = load("graph")
    graphs = module.make_graphs(20, 10, torch.Generator().manual_seed(0))
    assert set(graphs["labels"][graphs["real"]].tolist()) == {0, 1, 2}
    for example, node in graphs["real"].nonzero().tolist():
        friends, foes = (
            sum(graphs["colours"][example, other].item() == module.RED for other in neighbours.nonzero())
            for neighbours in graphs["adjacent"][example, :, node]
        )
        assert graphs["labels"][example, node] == (friends > foes) + (friends >= foes)


def test_padding_of_graphs_changes_nothing():
    module = load("graph")
    torch.manual_seed(0)
    model = module.GraphModel(16, 2, position=True)
    for project in model.projects:  # they start at zero
        torch.nn.init.normal_(project[-1].weight)
    graphs = module.make_graphs(5, 12, torch.Generator().manual_seed(0))
    real = graphs["real"]
    expected = model(graphs["colours"], graphs["adjacent"], real)[real]
    padded = {
        "colours": torch.nn.functional.pad(graphs["colours"].where(real, 3), (0, 4), value=2),
        "adjacent": torch.nn.functional.pad(graphs["adjacent"], (0, 4, 0, 4)),
        "real": torch.nn.functional.pad(real, (0, 4)),
    }
    torch.testing.assert_close(model(**padded)[padded["real"]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_video_model_learns_the_direction_and_sees_the_opposite_one_backwards(monkeypatch):
    module = load("video")
    small, other = (6, 8, 8), (6, 12, 10)
    monkeypatch.setattr(module, "TRAINED", small)
    monkeypatch.setattr(module, "OTHERS", [other])

    def reached(results):
        losses = results["losses"]
        assert all(math.isfinite(loss) for loss in losses)
        found = [results[size] for size in (small, other)]  # chance is 0.125; at full length 0.99, 0 and 0.99
        return sum(losses[-5:]) < 0.9 * sum(losses[:5]) and all(
            min(each["forwards"], each["backwards, the opposite"]) > 0.3 and each["backwards"] < 0.1 for each in found
        )

    train_until(reached, lambda times: module.main(steps=80 * times, seed=SEED, width=16, held_out_clips=200))


def test_a_single_frame_tells_nothing_of_the_direction():
    """The frames of clips of every direction have the same mean, in every pixel."""
    module = load("video")
    clips, labels = module.make_clips(4000, (5, 8, 8), torch.Generator().manual_seed(0))
    for frame in (0, 4):
        means = torch.stack([clips[labels == direction, 0, frame].mean(dim=0) for direction in range(8)])
        noise = clips[:, 0, frame].std() / (len(clips) / 8) ** 0.5
        assert (means - means.mean()).abs().max() < 5 * noise


def test_a_prompt_of_nothing_is_named():
    with pytest.raises(ValueError, match="prompt must have at least one character"):
        load("character_model").main(steps=1, prompt="")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", ["character_model", "graph", "video"])
def test_any_number_of_steps_is_taken(name, steps):
    sizes = {
        "character_model": {"width": 8, "depth": 1, "length": 1024, "generated": 3},
        "graph": {"most_nodes": 6},
        "video": {"width": 8, "held_out_clips": 2},
    }
    assert load(name).main(steps=steps, batch_size=2, **sizes[name])
