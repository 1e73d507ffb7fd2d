"""Invalid weight files are rejected with an error that names the file, and no files are written."""

import dataclasses
import json
import os
import pickle
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from commands import fail
from lambdanets.errors import InputError
from lambdanets.inference.loading import load
from lambdanets.models import create_model
from lambdanets.models.weights import FOLDER, WEIGHTS, packaged_models
from memory import at_most
from training.teachers import RECIPE, write_teacher


def copy_changed(source, target, change, metadata=None):
    """Copy a safetensors file with changed tensors or metadata, and return the path of the copy."""
    with safe_open(source, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        old_metadata = dict(file.metadata())
    change(tensors)
    save_file(tensors, target, metadata=metadata or old_metadata)
    return target


def read_card_json(path):
    """The model card of a weight file, as JSON."""
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["lambdanets"])


def copy_with_card(source, target, card):
    return copy_changed(source, target, lambda tensors: None, {"lambdanets": json.dumps(card)})


COMMANDS = (
    "predict FILE IMAGES",
    "evaluate FILE --data IMAGES",
    "pseudo-label FILE SHARDS out",
    "train digits --weights FILE --channels 3 --data IMAGES --run run",
    "train scattered_digits --weights FILE --run run",
)


@pytest.mark.parametrize("content", ["NaN", "code"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_reject_weights_with_nan_and_pickles_with_code(
    command, content, two_classes, shards, tmp_path, monkeypatch, recwarn, capsys
):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    if content == "NaN":
        source = write_teacher(tmp_path / "teacher", ("dark", "light"), recipe=replace(RECIPE, model_options={}))
        path, expected = tmp_path / "nan.safetensors", "must contain only finite weights, got NaN in conv1.weight"
        copy_changed(source / WEIGHTS, path, lambda tensors: tensors["conv1.weight"].view(-1)[-1:].fill_(torch.nan))
    else:
        path, expected = tmp_path / "evil.ckpt", "is not a checkpoint"
        path.write_bytes(pickle.dumps(Evil(), protocol=4))
    monkeypatch.chdir(tmp_path)
    files_before = sorted(tmp_path.rglob("*"))
    paths = {"FILE": path, "IMAGES": two_classes, "SHARDS": shards}
    error = fail(capsys, *(paths.get(word, word) for word in command.split()))
    assert error.startswith(f"lambdanets: {path} {expected}")
    assert not [each for each in recwarn if "torch.load" in str(each.message)]  # others are of first imports
    assert sorted(tmp_path.rglob("*")) == files_before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": 5}, "must be one of classification, "),
        *(({"classes": value}, "no valid model card: classes") for value in ({"dark": 0}, "dl", [], [1, 2])),
        ({"preprocessing": 5}, "preprocessing must be an object, got 5"),
        ({"preprocessing": {"image_size": 0}}, "image_size must be greater than or equal to 8"),
        ({"preprocessing": {"std": [0.0]}}, "std[0] must be greater than 0"),
        ({"preprocessing": {"crop_pct": -1}}, "crop_pct must be greater than 0"),
        ({"preprocessing": {"mean": [0.1, 0.2]}}, "mean must be one number or one for each of 3 channels"),
    ],
    ids=str,
)
def test_rejects_model_cards_with_values_out_of_range(change, message, tmp_path):
    source = write_teacher(tmp_path / "teacher", ("dark", "light")) / WEIGHTS
    card = read_card_json(source)
    if isinstance(change.get("preprocessing"), dict):
        change = {"preprocessing": card["preprocessing"] | change["preprocessing"]}
    with pytest.raises(InputError, match=re.escape(message)):
        load(copy_with_card(source, tmp_path / "changed.safetensors", card | change))
    bare = copy_changed(source, tmp_path / "bare.safetensors", lambda tensors: None, {"other": ""})
    with pytest.raises(InputError, match="has no model card; use"):
        load(bare)


def test_cards_of_recipes_of_unknown_tasks_keep_no_paths():
    card = load("digits").card
    card = dataclasses.replace(card, recipe=card.recipe | {"task": "mine", "labels": "/home/me"})
    assert card.without_paths().recipe == {"data": "digits"}


@pytest.mark.parametrize("name", packaged_models())
def test_a_card_without_a_field_is_refused_instead_of_completed(name, tmp_path):
    card = read_card_json(FOLDER / f"{name}.safetensors")
    fields = [(card, field.name) for field in dataclasses.fields(load(name).card) if field.name != "held_out"]
    fields += [(card["preprocessing"], field) for field in card.get("preprocessing", ())]
    for record, field in fields:
        value = record.pop(field)
        path = copy_with_card(FOLDER / f"{name}.safetensors", tmp_path / "a.safetensors", card)
        record[field] = value
        with pytest.raises(InputError, match=f"{field} must be given, got none"):
            load(path)


@pytest.mark.parametrize(
    "change",
    [
        *({"model": name} for name in ("hf-hub:a/b", "timm/hf-hub:a/b", "local-dir:.", "LOCAL-DIR:.", "./a", "C:a")),
        {"model": "resnet18.hf-hub:a/b"},
        {"model_options": {"checkpoint_path": "a.pth"}},
        {"model_options": {"pretrained_cfg": "a"}},
        {"model_options": {"pretrained": True}},
    ],
    ids=str,
)
def test_cards_of_all_tasks_name_only_architectures(change, tmp_path):
    for name in ("digits", "nuclei"):
        file = FOLDER / f"{name}.safetensors"
        path = copy_with_card(file, tmp_path / "a.safetensors", read_card_json(file) | change)
        with pytest.raises(InputError, match=r"there is no model named|model options must be"):
            load(path)
        if name == "digits" and "model_options" in change:
            with pytest.raises(InputError, match="model options must be"):
                create_model("lambda_resnet20_small", path)


def test_a_giant_network_in_a_card_is_refused_before_it_is_built(tmp_path):
    card = read_card_json(FOLDER / "digits.safetensors")
    for change in ({"model": "vit_giant_patch14_224"}, {"classes": list(map(str, range(300_000)))}):
        changed = card | {"model_options": {}} | change
        path = copy_with_card(FOLDER / "digits.safetensors", tmp_path / "a.safetensors", changed)
        with at_most(2e8), pytest.raises(InputError, match="contains weights of another architecture"):
            load(path)


@pytest.mark.parametrize("name", packaged_models())
def test_models_do_not_depend_on_the_default_device_and_dtype(name):
    image = Image.effect_noise((40, 40), 50)
    expected = load(name, device="cpu").predict(image)[0]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            model = load(name, device="cpu")
        actual = model.predict(image)[0]
    finally:
        torch.set_default_dtype(before)
    field = "scores" if name == "nuclei" else "probabilities"
    torch.testing.assert_close(getattr(actual, field), getattr(expected, field))
