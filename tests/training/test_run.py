import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from PIL import Image

from commands import contents
from convergence import train_until
from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.inference.loading import evaluate, load
from lambdanets.records import write_json
from lambdanets.training import run
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import read_recipe
from lambdanets.work import LOCK, InUseError
from lambdanets_lab.export.hub import save_pretrained
from noise_images import write_two_classes
from training.runs import assert_same_result, at_step, interrupted_run, quick_recipe, resume


def test_learns_to_distinguish_light_from_dark_images(quick, tmp_path):
    easy = replace(quick, drop_path=0.0, dropout=0.0, rand_augment=None, learning_rate=0.05)
    train_until(
        lambda result: result["top1"] == 1.0,
        lambda factor: run.start(replace(easy, epochs=8 * factor), tmp_path / str(factor)),
    )


def test_run_stopped_by_a_signal_resumes_bit_identically(quick, quick_run, tmp_path, monkeypatch):
    folder = tmp_path / "stopped"
    # the run has saved the step of the signal, unless it is the last one of an epoch
    for step, signum, saved in ((0, signal.SIGINT, 1), (4, signal.SIGTERM, 5), (8, signal.SIGUSR1, 6)):
        with monkeypatch.context() as patch:
            at_step(patch, step, lambda signum=signum: os.kill(os.getpid(), signum))
            with pytest.raises(KeyboardInterrupt):
                run.start(replace(quick, checkpoint_every=1000), folder)
        assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == saved
    resume(folder)
    assert_same_result(quick_run, folder)


def test_run_stopped_in_validation_resumes_bit_identically(quick, quick_run, tmp_path, monkeypatch):
    original = TrainingModule.validation_step

    def validation_step(self, batch, batch_idx):
        if self.global_step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModule, "validation_step", validation_step)
        with pytest.raises(KeyboardInterrupt):
            run.start(quick, tmp_path / "stopped")
    resume(tmp_path / "stopped")
    assert_same_result(quick_run, tmp_path / "stopped")


def test_a_run_in_use_is_refused(quick, tmp_path, monkeypatch):
    quick = replace(quick, epochs=1)

    def start_again():
        for start_or_resume in (lambda: run.start(quick, tmp_path / "run"), lambda: resume(tmp_path / "run")):
            with pytest.raises(InUseError, match="run is in use by another process"):
                start_or_resume()

    at_step(monkeypatch, 2, start_again)
    run.start(quick, tmp_path / "run")
    assert not (tmp_path / "run" / LOCK).exists()


def test_restarted_run_does_not_repeat_metrics(quick, quick_run, tmp_path, monkeypatch):
    interrupted_run(replace(quick, checkpoint_every=1000), tmp_path / "interrupted", monkeypatch)
    (tmp_path / "interrupted/checkpoints/last.ckpt").unlink()
    resume(tmp_path / "interrupted")
    assert_same_result(quick_run, tmp_path / "interrupted")


def test_evaluate_finds_the_images_held_out_unless_the_folder_changed(quick_run, tmp_path, capsys):
    run_folder = shutil.copytree(quick_run, tmp_path / "run")
    photos = shutil.copytree(quick_run.parent / "images", tmp_path / "photos")
    recipe = replace(read_recipe(run_folder / "recipe.json"), data=str(photos))
    write_json(run_folder / "recipe.json", recipe.fields())
    assert main(["evaluate", str(run_folder)]) == 0
    weights = shutil.copy(run_folder / "weights.safetensors", tmp_path)  # which does not name the data
    assert evaluate(weights, photos).scores == evaluate(run_folder).scores
    shutil.copy(photos / "dark/00.png", photos / "dark/a new photo.png")
    assert len(evaluate(weights, photos).labels) == 21
    for model, data in ((run_folder, []), (run_folder / "checkpoints/last.ckpt", ["--data", f"{photos}/../photos/"])):
        assert main(["evaluate", str(model), *data]) == 2
        assert "data must have the same images as when the run started" in capsys.readouterr().err
    new = write_two_classes(tmp_path / "new")
    assert main(["evaluate", str(run_folder), "--data", str(new)]) == 0  # with any images


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a run of `quick` that crashed in its sixth step. Read-only."""
    folder = tmp_path_factory.mktemp("interrupted")
    return interrupted_run(quick_recipe(write_two_classes(folder / "images")), folder / "run", pytest.MonkeyPatch())


def test_a_run_of_an_older_version_resumes_with_defaults_of_new_options(interrupted, quick_run, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    fields = read_recipe(folder / "recipe.json").fields()
    del fields["sync_batch_norm"]  # as if this version had added it
    write_json(folder / "recipe.json", fields)
    checkpoint = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    card = json.loads(checkpoint["lambdanets"])
    del card["stretch"]
    torch.save(checkpoint | {"lambdanets": json.dumps(card)}, folder / "checkpoints/last.ckpt")
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same_result(quick_run, folder)


def test_rejects_resuming_on_data_with_a_renamed_class(interrupted, two_classes, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    (two_classes / "dark").rename(two_classes / "zebra")
    with pytest.raises(InputError, match="data has changed since"):
        run.start(replace(read_recipe(folder / "recipe.json"), data=str(two_classes)), folder)


def test_a_run_with_other_data_or_weights_is_refused_and_unchanged(interrupted, quick_run, tmp_path, capsys):
    # a finished run reads neither, and a started one no weights: their result would be that of others
    others = {"--data": write_two_classes(tmp_path / "others"), "--weights": quick_run}
    Image.new("RGB", (9, 9)).save(tmp_path / "others/dark/new.png")
    for run_folder in (quick_run, interrupted):
        folder = shutil.copytree(run_folder, tmp_path / run_folder.parent.name)
        before = contents(folder)
        recipe = tmp_path / "recipe.py"
        fields = read_recipe(folder / "recipe.json")
        recipe.write_text(f"from lambdanets.tasks.recipes import *\nrecipe = {fields!r}")
        for start in (["train", str(recipe), "--run"], ["train", "--resume"]):
            for option, other in others.items():
                assert main([*start, str(folder), option, str(other)]) == 2
                error = capsys.readouterr().err
                assert "the data has changed" in error or f"{option[2:]} must be " in error
                assert contents(folder) == before
        assert main(["train", "--resume", str(folder)]) == 0
        assert ("is finished; nothing was trained" in capsys.readouterr().err) == (run_folder == quick_run)
    assert_same_result(quick_run, folder)


@pytest.mark.parametrize(
    "damage", ["truncated", "empty", "text", "one byte", "only weights", "another recipe", "a missing tensor"]
)
def test_rejects_a_damaged_last_ckpt(interrupted, damage, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    recipe = read_recipe(folder / "recipe.json")
    path = folder / "checkpoints/last.ckpt"
    original = path.read_bytes()
    if damage == "only weights":
        torch.save({"state_dict": {"x": torch.zeros(1)}}, path)
    elif damage == "another recipe":
        write_json(folder / "recipe.json", replace(recipe, seed=recipe.seed + 1).fields())
    elif damage == "a missing tensor":
        content = torch.load(path, weights_only=True)
        del content["state_dict"]["model.fc.bias"]
        torch.save(content, path)
    else:
        middle = len(original) // 2
        one_byte = original[:middle] + bytes([original[middle] ^ 255]) + original[middle + 1 :]
        damaged = {"truncated": original[:middle], "empty": b"", "text": b"hello", "one byte": one_byte}
        path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"last\.ckpt .*(remove .* to restart the run|another architecture)"):
        resume(folder)


def test_run_whose_last_ckpt_is_damaged_resumes_from_best_ckpt(interrupted, quick_run, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    shutil.copy(folder / "checkpoints/best.ckpt", folder / "checkpoints/last.ckpt")  # as the message advises
    resume(folder)
    assert_same_result(quick_run, folder)


@pytest.mark.figures
def test_class_and_file_names_may_contain_any_characters(quick, two_classes, tmp_path):
    classes = ("a$x^$b 猫", os.fsdecode(b"b\xff\xfeb"))
    for old, new in zip(("dark", "light"), classes, strict=True):
        (two_classes / old).rename(two_classes / new)
    for folder in classes:
        (two_classes / folder / "00.png").rename(two_classes / folder / os.fsdecode(b"\xff\xfe.png"))
        (two_classes / folder / "01.png").rename(two_classes / folder / "日本.png")
    (two_classes / classes[1] / "02.png").write_text("no image")
    result = run.start(replace(quick, epochs=1), tmp_path / "run")
    assert len(result["unreadable"]) == 1
    assert load(tmp_path / "run").classes == classes
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "evaluation")]) == 0
    assert main(["predict", str(tmp_path / "run"), str(two_classes), "--out", str(tmp_path / "out.jsonl")]) == 0
    save_pretrained(load(tmp_path / "run"), tmp_path / "hub")
    assert load(tmp_path / "hub").classes == classes


@pytest.mark.parametrize(("split", "name"), [("train", "training"), ("val", "validation")])
def test_rejects_a_split_without_readable_images(quick, split, name, tmp_path):
    for folder in ("train", "val"):
        write_two_classes(tmp_path / "data" / folder)
    for path in (tmp_path / "data" / split).rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match=rf"none of the 20 {name} images can be read: \S*\.png: it is not"):
        run.start(replace(quick, data=str(tmp_path / "data")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
