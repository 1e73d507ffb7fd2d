"""`lambdanets adopt`: models by name and folders of timm; and checkpoints of timm."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import lambdanets as ln
from commands import error_lines, succeed
from noise_images import write_two_classes

pytestmark = pytest.mark.usefixtures("small_lambda_resnet26t")


def test_adopts_a_model_by_name_beside_an_empty_folder_of_this_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("lambda_resnet26t").mkdir()
    succeed("adopt", "lambda_resnet26t", "--no-pretrained", "--out", "lambda_resnet26t")
    *replaced, folder = capsys.readouterr().out.splitlines()
    assert replaced == [f"stages.{name}.self_attn: replaced; same outputs" for name in ("2.1", "3.0", "3.1")]
    assert folder.startswith("model folder: lambda_resnet26t; ")
    loaded = ln.load("lambda_resnet26t", device="cpu")
    assert (loaded.card.model, loaded.classes[0]) == ("timm/lambda_resnet26t", "n01440764")


def test_adopts_the_ema_in_a_checkpoint_of_the_training_script_of_timm(timm_network, tmp_path, capsys):
    trained = timm.create_model("lambda_resnet26t", num_classes=3)
    saver = timm.utils.CheckpointSaver(
        torch.compile(trained),
        torch.optim.SGD(trained.parameters(), 0.1, momentum=0.9),
        args=argparse.Namespace(model="lambda_resnet26t", lr=0.1, mean=None, output=tmp_path, scores=np.ones(2)),
        model_ema=timm.utils.ModelEmaV3(timm_network),
        checkpoint_dir=str(tmp_path),
    )
    saver.save_checkpoint(3, metric=np.float64(0.7))
    adopted = ln.create_model("timm/lambda_resnet26t", tmp_path / "last.pth.tar", num_classes=3)
    ln.save_pretrained(adopted, tmp_path / "model")
    assert "state_dict_ema.* are used" in capsys.readouterr().err
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loaded = ln.load(tmp_path / "model", device="cpu")
    assert len(loaded.classes) == 3
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model.double()(x), timm_network.double()(x))


def test_adopts_a_folder_that_timm_saved(timm_network, tmp_path):
    for names in (["a", "b", "c"], {"2": "c", "0": "a", "1": "b"}):
        timm.models.save_for_hf(timm_network, tmp_path / "saved", model_config={"label_names": names})
        assert ln.load(tmp_path / "saved").classes == ("a", "b", "c")
    succeed("adopt", tmp_path / "saved", "--out", tmp_path / "model")
    assert ln.load(tmp_path / "model").classes == ("a", "b", "c")


def test_refuses_weights_without_a_card_in_one_line(timm_network, tmp_path, capsys):
    torch.save(timm_network.state_dict(), tmp_path / "weights.pth")
    (error,) = error_lines(capsys, "adopt", tmp_path / "weights.pth", "--out", tmp_path / "model")
    assert "has no model card; use a weight file of a run, or create_model(NAME, FILE)" in error
    assert not (tmp_path / "model").exists()


def test_finetuned_adopted_network_is_one_of_timm(tmp_path, monkeypatch):
    write_two_classes(tmp_path / "PHOTOS")
    monkeypatch.chdir(tmp_path)
    succeed("adopt", "lambda_resnet26t", "--no-pretrained", "--out", "foreign")
    train = "train finetune --weights foreign --data PHOTOS --run runs/photos"
    small = "--epochs 1 --image-size 32 --batch-size 4 --warmup-epochs 0"
    succeed(*train.split(), *small.split())
    recipe = json.loads(Path("runs/photos/recipe.json").read_text())
    assert (recipe["model"], recipe["mean"]) == ("timm/lambda_resnet26t", [0.485, 0.456, 0.406])
    succeed("evaluate", "runs/photos")
    ln.save_pretrained("runs/photos", "finetuned")
    finetuned = timm.create_model("local-dir:finetuned", pretrained=True).eval()
    trained = ln.load("runs/photos", device="cpu")
    assert trained.classes == ("dark", "light")
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(finetuned(x), trained.model(x), rtol=1e-3, atol=1e-3)
