import pickle

import pytest
import torch
from safetensors.torch import save_file

from lambdanets import create_model
from lambdanets.models.weights import load_weights, read_weights


@pytest.fixture(scope="module")
def model():
    return create_model("lambda_resnet20_small", num_classes=3)


def test_weights_of_another_architecture_are_refused_with_what_differs(model, tmp_path):
    weights = model.state_dict()
    weights["extra.weight"] = weights.pop("layer4.0.conv2.embedding.table")
    weights["fc.bias"] = torch.zeros(4)
    save_file(weights, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"another architecture: 1 \(extra.weight\) only in the file") as error:
        load_weights(model, tmp_path / "other.safetensors")
    assert "1 (layer4.0.conv2.embedding.table) only in the model" in str(error.value)
    assert "1 (fc.bias (4,) for (3,)) of another shape" in str(error.value)


def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    (tmp_path / "evil.ckpt").write_bytes(pickle.dumps({"state_dict": Evil()}))
    with pytest.raises(ValueError, match="is no checkpoint"):
        read_weights(tmp_path / "evil.ckpt")
    assert not ran.exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "last.ckpt"])
@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)) * 8], ids=["empty", "text", "bytes"])
def test_what_is_no_checkpoint_is_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"is no (checkpoint|safetensors)"):
        read_weights(tmp_path / name)


def test_a_truncated_checkpoint_is_refused(model, tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": model.state_dict()}, path)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(ValueError, match="is no checkpoint"):
        read_weights(path)


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"state_dict": 5}])
def test_plain_values_are_no_checkpoint(content, tmp_path):
    torch.save(content, tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="holds no named tensors"):
        read_weights(tmp_path / "plain.ckpt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.ckpt is no file"):
        read_weights(tmp_path / "nothing.ckpt")
