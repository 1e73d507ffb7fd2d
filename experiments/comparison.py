"""Writes docs/comparison.md and its figures from the results of `lambdanets compare`.

python experiments/comparison.py [--out FOLDER] reads experiments/results; the paragraphs are written by hand.
"""

import argparse
from pathlib import Path
from typing import Any

from lambdanets.evidence.studies.catalog import STUDIES
from lambdanets.evidence.studies.summary import describe_setup, draw_all, read_summary, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/xeon-2-cores/fashion_mnist.json"

OPENING = """\
    lambdanets compare all fashion_mnist --data FOLDER --training-images 12000 --epochs 1 --out comparisons/clothes
    lambdanets compare --resume comparisons/clothes     # resume it, or run it on a second GPU as well
    lambdanets compare --report comparisons/clothes/results.json
    lambdanets compare scope digits --variants 3x3 7x7 --seeds 0 1 2 3 4
    lambdanets compare scope --help                     # studies and options

The first command reproduces the results of this page, in about two hours on two CPU cores. It trains the same network
with different mixers in place of its 3x3 convolutions, with the same blocks, recipe, images and seeds. In Python,
`create_model("resnet50_mixer", mixer="axial_attention", pattern="CCLL")` builds such a network.

Top-1 is the accuracy in percent on the 10,000 test images of Fashion-MNIST, after one epoch on 12,000 training images,
measured in November 2026. A paired difference is the difference in top-1 to the baseline with the same seed, as mean ±
std over seeds. [Setup](#setup) has the details."""

PARAGRAPHS = {
    "mixers": """\
Every mixer with three seeds has a higher mean than the 3x3 convolution. The paired gain is 2.0 ± 0.4 points for the
Performer with softmax features, 1.9 ± 0.9 for axial attention, and 1.5 for the lambda layer, the Performer with ReLU
features and efficient attention. The differences between these five are not significant with three seeds: the lambda
layer is among the best, but not shown to be the best. Global attention (1.1), double attention (0.8) and augmented
attention (0.7) gain less, and squeeze-and-excitation gains 0.2. Three of the best five do not use positions. Among the
mixers with three seeds, the lambda layer has the network with the fewest parameters.

The mixers over 7x7 neighborhoods have one seed each, because they take several times as long. Patchwise attention has
the highest top-1 with that seed; local and pairwise attention are close to the convolution. A single seed is weak
evidence. The three mixers that the paper trained itself have the same order here: convolution, squeeze-and-excitation,
lambda layer. The gain of 1.5 equals the gain of the paper on ImageNet by coincidence.""",
    "performer": """\
The Performer with softmax features is 0.5 ± 0.6 points ahead of the lambda layer, and with ReLU features it is equally
accurate: the differences are not significant with three seeds. The Performer does not use positions. Without its
position term, the lambda layer is less accurate than both. It has one set of keys for all heads, while the Performer
has one for each of eight heads; on these images, more keys may compensate for missing positions.""",
    "content_position": """\
As in Table 9, position alone is close to content and position together, 0.3 ± 0.3 points below, and content alone is
further below, by 0.7 ± 0.3 points (9.6 on ImageNet). Position may matter less here because two stages of convolutions
precede the first lambda layer and the maps are small.""",
    "scope": """\
One lambda layer runs on 14x14 maps and two on 7x7 maps. The scopes 15x15, 23x23 and 31x31 therefore differ only in the
first layer, and there only in offsets of more than 7. Their accuracies differ by less than the std. 3x3 and 7x7 are
about 1 point below. In Table 10, on maps four times as wide, accuracy also stops growing at 15x15.""",
    "normalization": """\
On ImageNet, omitting batch norm costs 2.2 points, and the other normalizations cost 0.3 and 0.4. Here, the differences
are below twice the std or come from a single seed: 188 training steps are too few to reproduce the results of the
paper. Keys without normalization, which cost 8.4 points on ImageNet, are 0.4 points below with one seed.""",
}

SETUP = """\
## Setup

{setup}

- The network is a ResNet with 20 layers and 16 to 128 channels. The mixer replaces three convolutions in c4 and c5, one
  on 14x14 maps and two on 7x7 maps.
- The seed determines the initial weights, the order and augmentation of the images, and the choice of 12,000 training
  images. The 10,000 test images are always the same.
- Learning rate, warm-up and weight decay are those of the recipe. No hyperparameter was tuned for any mixer.

One epoch on a fifth of a small data set shows how fast mixers learn from few images. It does not show their accuracy
after full training or on large images, where lambda layers are strong according to the paper. `python
experiments/comparison.py` writes this page from the results."""

CLOSING = """\
## Mixers

| mixer | source | implementation |
|---|---|---|
| `convolution` | He et al. 2016 | PyTorch's convolution |
| `channel_attention` | Hu et al. 2018, squeeze-and-excitation | PyTorch's convolution, timm's SEModule |
| `double_attention` | Chen et al. 2018, A2-Nets | `lambda_interaction`: content lambda, normalized queries |
| `efficient_attention` | Shen et al. 2018 | `lambda_interaction`: one content lambda per head |
| `augmented_attention` | Bello et al. 2019 | convolution and SDPA in parallel, 2-D relative logits |
| `global_attention` | Vaswani et al. 2017; Bello et al. 2019 | SDPA, 2-D relative logits |
| `axial_attention` | Ho et al. 2019; Wang et al. 2020 | SDPA along the height, then the width, relative logits |
| `local_attention` | Ramachandran et al. 2019 | SDPA over tiles with halos, 7x7, relative logits |
| `local_relation` | Hu et al. 2019, LR-Net | sums of shifted maps, 7x7 |
| `pairwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `patchwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `performer_relu` | Choromanski et al. 2020 | linear attention with random features and ReLU |
| `performer_softmax` | Choromanski et al. 2020 | linear attention with random features that approximate softmax |
| `lambda` | Bello 2021 | `LambdaLayer2d` |

The docstrings in `lambdanets.layers.baselines` have the equation of each mixer, its cost, and the parts of the original
that are omitted. Each mixer is tested against a reference implementation with loops over positions."""


def page(summary: dict[str, Any]) -> str:
    """The page: one section per study, with its figure, its table and a paragraph on them."""
    parts = ["# Mixers compared", OPENING]
    for name, study in summary["studies"].items():
        question = STUDIES[name].question
        parts += [f"## {question}", f"![{question}](comparison/{name}.png)"]
        parts += [table(study), PARAGRAPHS[name]]
    return "\n\n".join([*parts, SETUP.format(setup=describe_setup(summary)), CLOSING]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for comparison.md and comparison/*.png")
    out = parser.parse_args().out
    summary = read_summary(RESULTS)
    (out / "comparison").mkdir(parents=True, exist_ok=True)
    (out / "comparison.md").write_text(page(summary), encoding="utf-8")
    draw_all(summary, out / "comparison")


if __name__ == "__main__":
    main()
