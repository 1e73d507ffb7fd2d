"""Loading weights: of other training code and architectures, corrupt files, code in pickles, non-finite values."""

import argparse

import numpy as np
import pytest
import torch

from all_pairs import in_turn
from lambdanets import create_model
from lambdanets.errors import InputError
from lambdanets.models.weights import load_tensors, read_weights


@pytest.fixture(scope="module")
def model():
    return create_model("lambda_resnet20_small", num_classes=3)


def test_rejects_weights_of_another_architecture(model):
    weights = model.state_dict()
    weights["extra.weight"] = weights.pop("layer4.0.conv2.embedding.table")
    weights["fc.bias"] = torch.zeros(4)
    with pytest.raises(ValueError, match=r"architecture: 2 \(extra.weight \(15, 15, 16\), fc.bias \(4,\)\)") as error:
        load_tensors(model, weights, "other")
    assert "2 (fc.bias (3,), layer4.0.conv2.embedding.table (15, 15, 16)) only in the model" in str(error.value)


PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.", "module._orig_mod.", "model.net.", "timm.", "")
WRAPPERS = {
    "no": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "best": np.float32(0.5), "args": argparse.Namespace(lr=1)},
    "model in model": lambda state: {"epoch": 3, "model": {"state_dict": state, "optimizer": {}}},
    "EMA": lambda state: {"model": {name: torch.zeros_like(x) for name, x in state.items()}, "model_ema": state},
    "student and teacher": lambda state: {"teacher": {f"backbone.{name}": x for name, x in state.items()}, "epoch": 1},
    "loss and metric": lambda state: {"state_dict": {**state, "loss.weight": torch.ones(3), "top1.tp": torch.ones(1)}},
    "no counters": lambda state: {name: x for name, x in state.items() if not name.endswith("tracked")},
    "compiled stage": lambda state: {name.replace("layer1.", "layer1._orig_mod."): x for name, x in state.items()},
}


@pytest.mark.parametrize(("prefix", "wrapper"), [*zip(PREFIXES, (*WRAPPERS, "no"), strict=True)])
def test_loads_checkpoints_of_other_training_code(prefix, wrapper, model, tmp_path):
    path, expected = tmp_path / "checkpoint.pth", model.state_dict()
    state = {f"{prefix}{name}": tensor for name, tensor in expected.items()}
    torch.save(WRAPPERS[wrapper](state), path)
    loaded = create_model("lambda_resnet20_small", pretrained=path, num_classes=3).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.items())


@pytest.mark.parametrize(("average", "wrapper"), in_turn(["ema", "teacher", "model_ema", ""], ["entries", "prefixes"]))
def test_of_two_networks_the_average_is_loaded_and_named(wrapper, average, model, tmp_path, capsys):
    expected = model.state_dict()
    networks = {"student": {name: torch.zeros_like(tensor) for name, tensor in expected.items()}}
    networks = {**networks, average: expected} if average else {"model": expected, **networks}
    if wrapper == "prefixes":
        pairs = networks.items()
        networks = {f"{key}.{name}": tensor for key, state in pairs for name, tensor in state.items()}
    for state in (networks, dict(reversed(networks.items()))):
        torch.save(state, tmp_path / "mean_teacher.pth")
        loaded = create_model("lambda_resnet20_small", pretrained=tmp_path / "mean_teacher.pth", num_classes=3)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
        assert capsys.readouterr().err.endswith(f"the weights {average or 'model'}.* are used, not student.*\n")


def test_says_which_type_in_a_checkpoint_is_code(model, tmp_path):
    torch.save({"model": model}, tmp_path / "network.pth")
    with pytest.raises(ValueError, match=r"it contains lambdanets\.models\.lambda_resnet\.LambdaResNet, which is code"):
        create_model("lambda_resnet20_small", pretrained=tmp_path / "network.pth")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234\n"


@pytest.mark.parametrize("name", ["weights.safetensors", "last.ckpt"])
@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)) * 8, LFS], ids=["empty", "text", "bytes", "LFS"])
def test_rejects_files_that_are_not_checkpoints(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    message = "a pointer of Git LFS" if content == LFS else r"is not a (checkpoint|readable safetensors)"
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"state_dict": 5}])
def test_rejects_checkpoints_without_tensors(content, tmp_path):
    torch.save(content, tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="contains no state dict"):
        read_weights(tmp_path / "plain.ckpt")


@pytest.mark.parametrize(("value", "non_finite"), [("nan", "NaN"), ("inf", "inf"), ("-inf", "inf")])
def test_rejects_non_finite_weights_and_keeps_those_of_the_model(value, non_finite, model):
    before = model.state_dict()["conv1.weight"].clone()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("fc.bias", "layer1.0.bn1.running_var"):
        weights[name][0] = float(value)
    message = rf"bad must contain only finite weights, got {non_finite} in layer1\.0\.bn1\.run"
    with pytest.raises(ValueError, match=message):
        load_tensors(model, weights, "bad")
    assert torch.equal(model.state_dict()["conv1.weight"], before)


def test_weights_are_finite_in_the_dtype_of_the_model_except_where_its_own_are_infinite():
    linear = torch.nn.Linear(2, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match="got inf in weight"):
        load_tensors(linear, {"weight": torch.full((2, 2), 1e6), "bias": torch.zeros(2)}, "large")
    masked = torch.nn.Module()
    masked.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    load_tensors(masked, masked.state_dict(), "mask")


def test_a_compiled_model_takes_weights_with_and_without_its_prefix():
    model = torch.nn.Linear(2, 2)
    compiled, expected = torch.compile(torch.nn.Linear(2, 2)), model.state_dict()
    load_tensors(compiled, expected, "plain")
    assert compiled.weight.equal(model.weight)
    load_tensors(model, compiled.state_dict(), "compiled")


def test_checkpoint_path_is_read_like_pretrained(model, tmp_path):
    path = tmp_path / "checkpoint.pth"
    torch.save({f"module.{name}": tensor for name, tensor in model.state_dict().items()}, path)
    loaded = create_model("lambda_resnet20_small", checkpoint_path=str(path), num_classes=3)
    assert torch.equal(loaded.fc.weight, model.fc.weight)
    features = create_model("lambda_resnet20_small", path, num_classes=0)
    assert torch.equal(features.conv1.weight, model.conv1.weight)
    with pytest.raises(InputError, match="there is no such file"):
        create_model("lambda_resnet20_small", checkpoint_path=str(tmp_path / "missing.pth"))


def test_a_checkpoint_with_other_classes_keeps_the_random_classifier_of_num_classes(tmp_path):
    original = create_model("resnet18", num_classes=7)
    torch.save(original.state_dict(), tmp_path / "a.pth")
    loaded = create_model("resnet18", pretrained=tmp_path / "a.pth", num_classes=3)
    assert loaded.fc.out_features == 3
    assert loaded.layer4[1].conv2.weight.equal(original.layer4[1].conv2.weight)
    with pytest.raises(InputError, match="fc"):
        create_model("resnet18", pretrained=tmp_path / "a.pth")


@pytest.mark.parametrize("name", ["lambda_resnet20_small", "timm/lambda_resnet26t"])
def test_weights_of_a_network_without_a_classifier_are_loaded(name, small_lambda_resnet26t, tmp_path):
    original = create_model(name, num_classes=0)
    torch.save(original.state_dict(), tmp_path / "a.pth")
    state = create_model(name, tmp_path / "a.pth", num_classes=3).state_dict()
    assert all(state[key].equal(tensor) for key, tensor in original.state_dict().items())


def test_weights_of_another_scope_are_interpolated(tmp_path, capsys):
    original = create_model("lambda_resnet20_small", num_classes=3)
    torch.save(original.state_dict(), tmp_path / "a.pth")
    loaded = create_model("lambda_resnet20_small", tmp_path / "a.pth", num_classes=3, scope=9)
    assert "embedding tables are interpolated to scope (9, 9)" in capsys.readouterr().err
    layer, expected = loaded.layer4[0].conv2.embedding, original.layer4[0].conv2.embedding
    expected.resize((9, 9))
    assert layer.table.equal(expected.table)


@pytest.mark.parametrize("feature_cls", ["list", "hook", "fx", "getter"])
def test_features_of_other_channels_have_the_weights_of_a_file(feature_cls, model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "a.pth")
    features = create_model(
        "lambda_resnet20_small", tmp_path / "a.pth", features_only=True, feature_cls=feature_cls, in_chans=1
    )
    images = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        expected = model.eval().forward_features(images.expand(-1, 3, -1, -1))
        torch.testing.assert_close(features.eval()(images)[-1], expected, rtol=1e-4, atol=1e-4)
