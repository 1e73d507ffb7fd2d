"""Folders in timm's hub format: saved, loaded here and by timm, uploaded and downloaded."""

import json
import runpy
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from safetensors.torch import load_file

import lambdanets as ln
from commands import contents
from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.training.run import start
from noise_images import write_two_classes
from training.runs import quick_recipe
from training.teachers import RECIPE, write_teacher

CLASSES = ("dark", "light")
OPTIONS = {"scope": 5, "heads": 2}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A weight file of a model with options and gray input."""
    recipe = replace(RECIPE, channels=1, model_options=OPTIONS)
    return write_teacher(tmp_path_factory.mktemp("hub") / "teacher", CLASSES, recipe=recipe)


def random_images(channels, side):
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_a_folder_cannot_be_saved_into_itself(tmp_path):
    run = write_teacher(tmp_path / "run")
    files = contents(run)
    for folder in (run, run / "model.safetensors"):
        with pytest.raises(InputError, match="folder must not be a run folder or a file"):
            ln.save_pretrained(run, folder)
    assert contents(run) == files


def test_a_saved_classifier_loads_here_and_in_timm(teacher, tmp_path):
    original = ln.load(teacher, device="cpu")
    folder = ln.save_pretrained(original, tmp_path / "model")
    loaded = ln.load(folder, device="cpu")
    assert loaded.card == original.card
    x = random_images(1, original.card.preprocessing.image_size)
    expected = original.probabilities(x)
    torch.testing.assert_close(loaded.probabilities(x), expected)
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(network(x).softmax(dim=1), expected)
    data = timm.data.resolve_model_data_config(network)
    assert (data["input_size"][0], tuple(data["mean"])) == (1, original.card.preprocessing.mean)
    assert network.pretrained_cfg["label_names"] == list(CLASSES)
    for source in (teacher, folder):  # options and classes are those of the run
        torch.testing.assert_close(ln.create_model(original.card.model, source).eval()(x).softmax(dim=1), expected)
    assert ln.create_model(original.card.model, teacher, num_classes=5).num_classes == 5


def test_files_that_leave_the_machine_have_no_paths_and_no_names_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    initial = write_teacher(tmp_path / "secret_teacher", CLASSES, recipe=replace(RECIPE, image_size=8))
    images = write_two_classes(tmp_path / "secret_patients")
    recipe = replace(quick_recipe(images), weights=str(initial), epochs=1)
    start(recipe, tmp_path / "run")
    folder = ln.save_pretrained("run", "model", license="apache-2.0")
    ln.export("run", "model.pt2", to="pt2")
    text = (folder / "README.md").read_text()
    assert f"**top1:** {json.loads(Path('run/result.json').read_text())['top1']}" in text
    assert f"**learning_rate:** {recipe.learning_rate}" in text
    assert "license: apache-2.0" in text
    private = [b"secret", str(tmp_path).encode(), str(Path(ln.__file__).parents[1]).encode(), b"site-packages"]
    for file in (*folder.iterdir(), *map(Path, ("run/weights.safetensors", "model.pt2"))):
        assert not [name for name in private if name in file.read_bytes()], file
    assert len(ln.evaluate("run").labels) == 4  # the run itself knows its data
    with pytest.raises(InputError, match="data must be given"):
        ln.evaluate(folder)


def test_every_saved_network_loads_with_the_same_outputs_or_is_refused(tmp_path):
    shared = {"share_embeddings": True, "lambda_blocks": ((), (), (1, 2), (1,))}
    for name, options in (("lambda_resnet20_small", {"scope": 5, "in_chans": 1, **shared}), ("test_resnet", {})):
        network = ln.create_model(name, num_classes=3, zero_init_last=False, **options).eval()
        loaded = ln.load(ln.save_pretrained(network, tmp_path / name), device="cpu").model
        x = random_images(options.get("in_chans", 3), 32)
        torch.testing.assert_close(loaded(x), network(x))
    convolution = partial(torch.nn.Conv2d, kernel_size=3, padding=2, dilation=2, bias=False)
    for make_layer in (ln.LambdaLayer2d, convolution):  # the second has the same names and shapes
        changed = ln.create_model("test_resnet", num_classes=3, zero_init_last=False)
        replaced = make_layer(96, 96)
        ln.replace_convolutions(changed, lambda conv, layer=replaced: layer, "layer4.0.conv2")
        for model in (changed, Classifier(changed, ln.load(tmp_path / "test_resnet").card)):
            with pytest.raises(InputError, match="changes such as those of replace_convolutions"):
                ln.save_pretrained(model, tmp_path / "changed")
    for other in (ln.create_model("lambda_unet_small"), ln.create_model("test_resnet", features_only=True)):
        with pytest.raises(InputError, match="must be a classifier"):
            ln.save_pretrained(other, tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"model_args": {"pretrained": True, "pretrained_cfg": {"url": "http://127.0.0.1:9/x.pth"}}},
        {"model_args": {"pretrained_cfg_overlay": {"file": "/etc/passwd"}}},
        {"model_args": {"checkpoint_path": "weights.pth"}},
        {"architecture": "hf-hub:user/name"},
    ],
    ids=str,
)
def test_config_of_a_folder_names_only_an_architecture_and_its_arguments(change, teacher, tmp_path):
    folder = ln.save_pretrained(teacher, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    for load in (ln.load, lambda path: ln.create_model(f"local-dir:{path}", pretrained=True)):
        with pytest.raises(InputError, match=r"not a configuration of timm: (model options|there is no)"):
            load(str(folder))


def test_crop_modes_other_than_center_are_refused(timm_network, tmp_path):
    timm.models.save_for_hf(timm_network, tmp_path, model_config={"pretrained_cfg": {"crop_mode": "squash"}})
    with pytest.raises(InputError, match="crop_mode must be center, got squash"):
        ln.load(tmp_path)
    timm_network.pretrained_cfg["input_size"] = (3, 64, 48)
    with pytest.raises(InputError, match="input_size must be square, got 64x48"):
        ln.save_pretrained(timm_network, tmp_path)


def test_adopted_weights_are_saved_with_the_keys_of_timm(timm_network, tmp_path):
    adopted = timm.create_model("lambda_resnet26t", num_classes=3, zero_init_last=False).eval()
    adopted.load_state_dict(timm_network.state_dict())
    ln.adopt(adopted)
    folder = ln.save_pretrained(adopted, tmp_path / "model")
    x = random_images(3, 64).double()
    with torch.inference_mode():
        expected = timm_network.double()(x)
        network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        torch.testing.assert_close(network.double()(x), expected)
        created = ln.create_model(f"local-dir:{folder}", pretrained=True).eval()
        for loaded in (ln.load(folder, device="cpu").model, created):
            assert any(isinstance(module, ln.LambdaLayer2d) for module in loaded.modules())
            torch.testing.assert_close(loaded.double()(x), expected)


class Hub:
    """huggingface_hub's client of repositories that are folders."""

    endpoint = "https://hub"

    def __init__(self, folder):
        self.folder, self.private = folder, set()

    def create_repo(self, name, *, private, exist_ok):
        (self.folder / name).mkdir(parents=True, exist_ok=exist_ok)
        self.private |= {name} if private else set()
        return SimpleNamespace(repo_id=name)

    def file_exists(self, name, file):
        return (self.folder / name / file).is_file()

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)


def test_uploads_to_the_hub_and_loads_from_it(teacher, tmp_path, monkeypatch):
    hub, patterns = Hub(tmp_path / "hub"), set()

    def download(name, *, allow_patterns, revision):
        patterns.update(allow_patterns)
        return hub.folder / name

    monkeypatch.setattr("lambdanets_lab.export.hub.HfApi", lambda **options: hub)
    monkeypatch.setattr("lambdanets.models.weights.snapshot_download", download)
    (hub.folder / "user/digits").mkdir(parents=True)
    (hub.folder / "user/digits/README.md").write_text("mine")
    assert ln.push_to_hub(teacher, "user/digits", private=True) == "https://hub/user/digits"
    assert ln.load("hf-hub:user/digits", device="cpu").classes == CLASSES
    assert ln.create_model("hf-hub:user/digits", pretrained=True).num_classes == 2
    assert patterns == {"config.json", "model.safetensors"}
    model = hub.folder / "user/digits/model.safetensors"
    torch.save(load_file(model), model.with_name("pytorch_model.bin"))
    model.unlink()
    assert ln.load("hf-hub:user/digits", device="cpu").classes == CLASSES
    assert hub.private == {"user/digits"}
    assert (hub.folder / "user/digits/README.md").read_text() == "mine"


def test_an_upload_or_download_that_fails_is_one_message(teacher, monkeypatch):
    def fail(*arguments, **options):
        raise ConnectionError("the hub\ncannot be reached")

    monkeypatch.setattr("lambdanets_lab.export.hub.HfApi.create_repo", fail)
    monkeypatch.setattr("lambdanets.models.weights.snapshot_download", fail)
    with pytest.raises(InputError, match=r"^user/digits cannot be uploaded: .*$"):
        ln.push_to_hub(teacher, "user/digits")
    with pytest.raises(InputError, match=r"^hf-hub:user/digits cannot be downloaded: .*$"):
        ln.load("hf-hub:user/digits")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "is not a configuration of timm"),
        ("model.safetensors", b"x", "is not a readable safetensors file"),
        ("model.safetensors", None, "with model.safetensors or pytorch_model.bin"),
    ],
)
def test_rejects_a_damaged_model_folder(file, content, message, teacher, tmp_path):
    path = ln.save_pretrained(teacher, tmp_path / "model") / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ln.load(path.parent)


def test_torch_hub_lists_every_model_and_loads_them(monkeypatch):
    repository = str(Path(__file__).parents[3])
    monkeypatch.setattr(sys, "path", [*sys.path])
    entry_points = runpy.run_path(f"{repository}/hubconf.py")
    assert sys.path[:2] == [f"{repository}/src", f"{repository}/lab"]  # the package need not be installed
    assert all(callable(entry_points[name]) for name in ("load", "mask_rcnn", *ln.list_models()))
    for arguments in (["lambda_resnet20_small"], ["create_model", "resnet18"]):
        with torch.device("meta"):
            assert torch.hub.load(repository, *arguments, source="local", num_classes=4).num_classes == 4
