"""Pretrained models of the package: packs the weights of a run, and writes the table of docs/pretrained.md.

    python experiments/pretrained.py RUN NAME [--data DATA] [--card KEY=VALUE ...]    write NAME.safetensors
    python experiments/pretrained.py [--page docs/pretrained.md]                       write the page's table

Matrices and convolutions are stored in float16, vectors (biases, scales, statistics of norms) in float32. The model
card has no paths: --data is the default dataset of evaluation, such as "digits" or "torch/cifar10". --card changes
entries of the card that the run does not determine, such as tile_size=256 stretch=true.
"""

import json
from pathlib import Path

import torch
from pages import RESULTS, PageScript, read_results, replace_section
from safetensors.torch import save_file

from lambdanets.models.weights import FOLDER, find_weights, read_weights
from lambdanets_lab.markdown import markdown_table


def main() -> None:
    parser = PageScript(__doc__, "pretrained.md")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--data", default="")
    parser.add_argument("--card", nargs="*", default=[])
    options = parser.parse_args()
    if options.run is None:
        write_page(options.page)
    elif options.name is None:
        parser.error("NAME must be given")
    else:
        pack(options.run, options.name, options.data, dict(entry.split("=", 1) for entry in options.card))


def pack(run: Path, name: str, data: str, card_fields: dict[str, str]) -> None:
    """Write the weights of a run as float16, with their model card, to the package.

    data: the dataset in the model card. card_fields: other fields of the model card to set, as JSON.
    """
    tensors, metadata = read_weights(find_weights(run).file)
    card = json.loads(metadata["lambdanets"])  # weight files have no paths
    card["recipe"]["data"] = data
    card |= {field: json.loads(value) for field, value in card_fields.items()}
    packed = {key: x.half() if x.ndim > 1 and x.is_floating_point() else x for key, x in tensors.items()}
    assert all(torch.isfinite(x).all() for x in packed.values())
    file = FOLDER / f"{name}.safetensors"
    save_file(packed, file, metadata={"lambdanets": json.dumps(card)})
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {sum(x.numel() for x in packed.values()):,} values")


def write_page(page: Path) -> None:
    rows = []
    for name, result in read_results(RESULTS / "pretrained.json").items():
        size = (FOLDER / f"{name}.safetensors").stat().st_size / 1e6
        rows.append(
            [f"`{name}`", result["model"], result["data"], result["score"], result["training"], f"{size:.1f} MB"]
        )
    table = markdown_table(["name", "model", "data", "score", "training", "file"], *rows)
    replace_section(page, "pretrained", table + "\n")


if __name__ == "__main__":
    main()
