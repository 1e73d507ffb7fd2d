"""Fine-tuning: the model is taken from the weights; image size, scope and classes may change."""

from dataclasses import replace

import pytest
import torch

from lambdanets.cli import main
from lambdanets.errors import InputError
from lambdanets.inference.loading import load
from lambdanets.layers import RelativeEmbedding
from lambdanets.recipes import find_recipe
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.tasks.classification import ClassificationTask
from lambdanets.training import run
from training.runs import initialized_model, load_weights
from training.teachers import write_teacher

PREPROCESSING = {"channels": 3, "image_size": 8, "mean": (0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3)}
BASE = replace(DIGITS, data="", batch_size=6, model_options={"scope": 7, "heads": 2}, **PREPROCESSING)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("base") / "run", ("dark", "light"), recipe=BASE)


@pytest.fixture
def finetune(weights, two_classes):
    """The finetune recipe on two classes, 3 steps per epoch."""
    fields = {"epochs": 2, "batch_size": 6, "rand_augment": None, "checkpoint_every": 2}
    return replace(find_recipe("finetune"), weights=str(weights), data=str(two_classes), **fields)


def test_another_image_size_keeps_weights_options_and_preprocessing(finetune, weights):
    recipe = ClassificationTask.resolve(replace(finetune, image_size=15))
    assert (recipe.model, recipe.model_options) == (BASE.model, BASE.model_options)
    assert recipe.preprocessing == replace(BASE.preprocessing, image_size=15)
    after = initialized_model(recipe, ("dark", "light")).state_dict()
    assert [name for name, tensor in load_weights(weights).items() if not torch.equal(tensor, after[name])] == []
    gray = initialized_model(replace(recipe, channels=1, mean=(0.5,), std=(0.2,)), ("dark", "light")).state_dict()
    torch.testing.assert_close(gray["conv1.weight"], after["conv1.weight"].sum(1, keepdim=True))


@pytest.mark.parametrize(("scope", "multi_head"), [(3, False), (11, True)])
def test_another_scope_interpolates_the_embedding_tables(scope, multi_head, tmp_path):
    options = {"scope": 7, "heads": 2, "multi_head": multi_head}
    base = replace(BASE, model_options=options)
    recipe = replace(base, weights=str(write_teacher(tmp_path / "run", ("dark", "light"), recipe=base)))
    finetuned = initialized_model(replace(recipe, model_options=options | {"scope": scope}), ("dark", "light"))
    original = initialized_model(recipe, ("dark", "light"))
    embeddings, original_embeddings = (
        [module for module in model.modules() if isinstance(module, RelativeEmbedding)]
        for model in (finetuned, original)
    )
    assert len(embeddings) == len(original_embeddings) > 1
    for actual, expected in zip(embeddings, original_embeddings, strict=True):
        expected.resize((scope, scope))
        assert actual.scope == (scope, scope)
        torch.testing.assert_close(actual.table, expected.table, rtol=0, atol=0)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(finetuned.eval()(images), original.eval()(images))


def test_options_of_the_command_override_those_of_the_weights(finetune, weights, two_classes, tmp_path):
    fields = ["--weights", weights, "--data", two_classes, "--interpolation", "bicubic", "--epochs", 1]
    arguments = [*fields, "--batch-size", 6, "--model-options", "scope", 9, "--run", tmp_path / "run"]
    assert main(["train", "finetune", *map(str, arguments)]) == 0
    preprocessing = load(tmp_path / "run").card.preprocessing  # bicubic is the default of other recipes
    assert preprocessing == replace(BASE.preprocessing, interpolation="bicubic")
    tables = [tensor for name, tensor in load_weights(tmp_path / "run").items() if name.endswith("embedding.table")]
    assert {tuple(table.shape[:2]) for table in tables} == {(9, 9)}


def test_finetuning_needs_weights_or_a_model(finetune):
    with pytest.raises(InputError, match="weights must be given; add --weights PATH"):
        run.resolve_recipe(replace(finetune, weights=""))
    with pytest.raises(InputError, match="model must be given"):
        run.resolve_recipe(replace(finetune, weights=None))
