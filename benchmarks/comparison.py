"""docs/comparison.md and its pictures, from the results of `lambdanets compare`.

python benchmarks/comparison.py [--out FOLDER] reads benchmarks/results; people who read them wrote the paragraphs.
"""

import argparse
from pathlib import Path
from typing import Any

from lambdanets.comparison.summary import described, draw_all, read_summary, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/xeon-2-cores/fashion_mnist.json"
COMMAND = "lambdanets compare all fashion_mnist --data FOLDER --training-images 12000 --epochs 1"

OPENING = """\
What does a layer in the place of the 3x3 convolution learn, when all else is the same? The paper compares its lambda
layer with numbers of other papers, each with a network and a training of its own. Here every layer stands in the same
blocks of the same small network and is trained by the same recipe, on the same images, with the same seeds.

{setup}

The network is a ResNet of 20 layers, its 3x3 convolutions 16 to 128 channels wide, with the layer in c4 and c5: on
maps of 14x14 once and of 7x7 twice. The seed sets the weights, the order and augmentation of the images, and which of
the 60,000 training images are taken; the 10,000 test images are always the same. Nothing was tuned for any layer:
learning rate, warm-up and weight decay are those of the recipe.

One epoch over a fifth of a small data set shows how fast layers learn from few images. It does not show what they
reach when trained to the end, nor on large images, where the paper sees the strength of lambda layers; and three
seeds tell apart only what lies well beyond the deviations given.

To do it again, on two cores in about two hours, or on a GPU: `{command}`. This page is written from the results by
`python benchmarks/comparison.py`."""

PARAGRAPHS: dict[str, str] = {}

CLOSING = """\
## The rivals

| mixer | source | made with |
|---|---|---|
| `convolution` | He et al. 2016 | PyTorch's convolution |
| `channel_attention` | Hu et al. 2018, squeeze-and-excitation | the convolution, timm's module |
| `double_attention` | Chen et al. 2018, A2-Nets | `lambda_interaction`: a lambda of content with normalized queries |
| `efficient_attention` | Shen et al. 2018 | `lambda_interaction`, a lambda of content for each head |
| `augmented_attention` | Bello et al. 2019 | a convolution beside SDPA, 2-D relative logits |
| `global_attention` | Vaswani et al. 2017; Bello et al. 2019 | SDPA, 2-D relative logits |
| `axial_attention` | Ho et al. 2019; Wang et al. 2020 | SDPA along the height, then the width, relative logits |
| `local_attention` | Ramachandran et al. 2019 | SDPA over tiles and their surroundings, 7x7, relative logits |
| `local_relation` | Hu et al. 2019, LR-Net | sums of shifted maps, 7x7 |
| `pairwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `patchwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `performer_relu` | Choromanski et al. 2020 | linear attention on orthogonal random features, ReLU |
| `performer_softmax` | Choromanski et al. 2020 | linear attention on orthogonal random features, positive, of softmax |
| `lambda` | Bello 2021 | `LambdaLayer2d` |

The docstring of each has its equation, what it costs, and what of the original is left out; each is tested against a
plain loop over positions."""


def page(summary: dict[str, Any]) -> str:
    """The document: a section a study, its picture, its table and what it says."""
    parts = ["# Rivals, trained alike", OPENING.strip().format(command=COMMAND, setup=described(summary))]
    for name, study in summary["studies"].items():
        parts += [f"## {study['question']}", f"![{study['question']}](comparison/{name}.png)"]
        parts += [table(study), PARAGRAPHS[name]]
    return "\n\n".join([*parts, CLOSING.strip()]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    out = parser.parse_args().out
    summary = read_summary(RESULTS)
    (out / "comparison").mkdir(parents=True, exist_ok=True)
    (out / "comparison.md").write_text(page(summary), encoding="utf-8")
    draw_all(summary, out / "comparison")


if __name__ == "__main__":
    main()
