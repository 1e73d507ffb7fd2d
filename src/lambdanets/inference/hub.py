"""Model folders in timm's hub format: config.json, model.safetensors and README.md.

timm and this package load them as "local-dir:FOLDER" and, after an upload, as "hf-hub:USER/NAME".
"""

import os
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from safetensors.torch import save
from timm.models._hub import save_config_for_hf
from torch import nn

from lambdanets.adoption import foreign_state_dict, is_adopted
from lambdanets.errors import InputError, one_line
from lambdanets.files import atomic_write
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.hub_folder import CONFIG, HUB_WEIGHTS
from lambdanets.inference.hub_readme import write_readme
from lambdanets.inference.loading import load_one_of
from lambdanets.inference.model_card import ClassifierCard
from lambdanets.inference.weights import WEIGHTS

FIGURES = ("curves.png", "predictions.png")


def save_pretrained(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    folder: str | os.PathLike[str],
    *,
    license: str | None = None,
) -> Path:
    """Write a classifier to a folder in timm's hub format, and return the path of the folder.

    model: a run folder or weight file, a `Classifier`, or a network from `create_model`, whether adopted or not.
    folder: created if missing. config.json, model.safetensors and README.md in it are replaced.
    license: identifier of the license of the weights for README.md, such as "apache-2.0".

    Layers replaced by `adopt` are saved with the state-dict keys and shapes of the original layers, so that timm loads
    the folder without this package. For models of this package, `import lambdanets` before
    timm.create_model("local-dir:FOLDER", pretrained=True). README.md describes how to load the model. For a run folder,
    it also has the figures, and the data, recipe, scores and versions from result.json and recipe.json.

    Raises InputError for models that timm's hub format does not support, such as detectors.
    """
    run = Path(model) if isinstance(model, str | os.PathLike) else None
    source = model if run is None else load_one_of([ClassifierCard], run, "cpu")
    network = source.model if isinstance(source, Classifier) else source
    if not isinstance(network, nn.Module) or not hasattr(network, "pretrained_cfg"):
        raise InputError(
            "model must be a run folder, a weight file, a Classifier or a network from create_model, "
            f"got {type(source).__name__}; timm's hub format is for classifiers"
        )
    folder = Path(folder)
    if run is not None and (run / WEIGHTS).is_file() and folder.exists() and folder.samefile(run):
        raise InputError(f"folder must not be the run folder of the model, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = foreign_state_dict(network) if is_adopted(network) else network.state_dict()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    card = source.card if isinstance(source, Classifier) else None
    metadata = {"format": "pt"} if card is None else {"format": "pt", "lambdanets": card.to_json({})}
    _write_config(network, source, folder / CONFIG)
    atomic_write(folder / HUB_WEIGHTS[0], save(tensors, metadata=metadata))
    figures = _figures(model)
    for figure in figures:
        shutil.copyfile(figure, folder / figure.name)
    write_readme(folder, network, card, run, [figure.name for figure in figures], license)
    return folder


def push_to_hub(
    model: str | os.PathLike[str] | Classifier | nn.Module,
    repo_id: str,
    folder: str | os.PathLike[str],
    *,
    license: str | None = None,
    private: bool = False,
    token: str | None = None,
    commit_message: str = "Upload model",
) -> str:
    """Write a classifier to a folder as `save_pretrained` does, upload it to the Hugging Face hub, and return its URL.

    repo_id: "USER/NAME", created if missing, private if `private`. An existing README.md there is kept.
    token: access token; by default that of `hf auth login` or of the environment variable HF_TOKEN.

    Raises InputError if the upload fails; the folder remains.
    """
    saved = save_pretrained(model, folder, license=license)
    api = HfApi(token=token, library_name="lambdanets")
    try:
        repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        files = [CONFIG, HUB_WEIGHTS[0], *(figure.name for figure in _figures(model))]
        if not api.file_exists(repository, "README.md"):
            files.append("README.md")
        api.upload_folder(repo_id=repository, folder_path=saved, allow_patterns=files, commit_message=commit_message)
    except Exception as error:  # the HTTP library and huggingface_hub raise exceptions of many types
        raise InputError(f"{repo_id} cannot be uploaded: {one_line(error)}; the model is in {saved}") from error
    return f"{api.endpoint}/{repository}"


def _figures(model: str | os.PathLike[str] | Classifier | nn.Module) -> list[Path]:
    """The figures of a run folder."""
    run = Path(model) if isinstance(model, str | os.PathLike) else None
    return [run / name for name in FIGURES if (run / name).is_file()] if run is not None else []


def _write_config(network: nn.Module, source: Any, path: Path) -> None:
    """Write config.json: architecture, arguments, classes and preprocessing."""
    if not isinstance(source, Classifier):
        save_config_for_hf(network, str(path))
        return
    card, preprocessing = source.card, source.card.preprocessing
    side, channels = preprocessing.image_size, preprocessing.channels
    save_config_for_hf(
        network,
        str(path),
        model_config={"label_names": list(card.classes)},
        model_args={**card.model_options, **({} if channels == 3 else {"in_chans": channels})},
        data_config={
            "input_size": (channels, side, side),
            "mean": _per_channel(preprocessing.mean, channels),
            "std": _per_channel(preprocessing.std, channels),
            "crop_pct": preprocessing.crop_pct,
            "interpolation": preprocessing.interpolation,
        },
    )


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values * channels if len(values) == 1 else values
