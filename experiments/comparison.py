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
    lambdanets compare --resume comparisons/clothes     # after an interruption, or on a second GPU beside the first
    lambdanets compare --report comparisons/clothes/results.json
    lambdanets compare scope digits --variants 3x3 7x7 --seeds 0 1 2 3 4
    lambdanets compare scope --help                     # studies and options

The first command makes this page's numbers, in about two hours on two cores. It trains the same network with
different mixers in place of its 3x3 convolutions: same blocks, recipe, images and seeds. In Python,
`create_model("resnet50_mixer", mixer="axial_attention", pattern="CCLL")` builds such a network.

Top-1 is in percent, on the 10,000 test images of Fashion-MNIST after one epoch on 12,000 training images, November
2026. A paired difference is the mean ± std over seeds of top-1 minus the baseline's with the same seed.
[Setup](#setup) has the details."""

PARAGRAPHS = {
    "mixers": """\
Every mixer with three seeds has a higher mean than the 3x3 convolution. The paired gain is 2.0 ± 0.4 points for the
Performer with softmax features, 1.9 ± 0.9 for axial attention, and 1.5 for the lambda layer, the Performer with
ReLU features and efficient attention. Three seeds do not separate these five, so the lambda layer is among the best
and not shown to be the best. Global attention (1.1), double attention (0.8) and augmented attention (0.7) gain
less, squeeze-and-excitation 0.2. Three of the best five use no positions. Among the mixers with three seeds, the
lambda layer makes the smallest network.

The mixers over 7x7 neighborhoods have one seed each, since they take several times as long: patchwise attention has
the highest top-1 with that seed, local and pairwise attention are near the convolution. One seed says little. The
paper's own three rows keep their order: convolution, squeeze-and-excitation, lambda layer. That the gain of 1.5
equals the paper's on ImageNet is chance.""",
    "performer": """\
The Performer with softmax features is 0.5 ± 0.6 points ahead of the lambda layer, with ReLU features level: three
seeds do not separate them. Without positions, which the Performer does not use either, the lambda layer is behind
both. It has one set of keys for all heads, the Performer one for each of eight heads; on these images more keys may
make up for missing positions.""",
    "content_position": """\
As in Table 9, position alone is close to both, 0.3 ± 0.3 points below, and content alone is further behind, 0.7 ±
0.3 (9.6 on ImageNet). Here two of four stages are convolutions before the first lambda layer, and the maps are
small, so less position information may be missing.""",
    "scope": """\
The maps are 14x14 once and 7x7 twice: scopes of 15, 23 and 31 differ only in the first of the three layers, and
there only in offsets of more than 7. They do not differ beyond the std; 3x3 and 7x7 are about 1 point below. Table
10 has the same shape, on maps four times as wide: accuracy stops growing at 15x15.""",
    "normalization": """\
On ImageNet, leaving out batch norm costs 2.2 points, the other normalizations 0.3 and 0.4. Here the differences are
within twice the std or of a single seed: 188 training steps do not show what the paper found. Keys without
normalization, which cost 8.4 points on ImageNet, have one seed, 0.4 points below.""",
}

SETUP = """\
## Setup

{setup}

- The network is a ResNet of 20 layers, 16 to 128 channels wide, with the mixer in c4 and c5: once on 14x14 maps and
  twice on 7x7 maps.
- The seed draws the weights, the order and augmentation of the images, and the 12,000 training images; the 10,000
  test images are always the same.
- Learning rate, warm-up and weight decay are those of the recipe; nothing was tuned for any mixer.

One epoch over a fifth of a small data set shows how fast mixers learn from few images. It does not show what they
reach after full training or on large images, where the paper finds lambda layers strong. `python
experiments/comparison.py` writes this page from the results."""

CLOSING = """\
## Mixers

| mixer | source | implementation |
|---|---|---|
| `convolution` | He et al. 2016 | PyTorch's convolution |
| `channel_attention` | Hu et al. 2018, squeeze-and-excitation | the convolution, timm's module |
| `double_attention` | Chen et al. 2018, A2-Nets | `lambda_interaction`: content lambda, normalized queries |
| `efficient_attention` | Shen et al. 2018 | `lambda_interaction`: one content lambda per head |
| `augmented_attention` | Bello et al. 2019 | convolution and SDPA side by side, 2-D relative logits |
| `global_attention` | Vaswani et al. 2017; Bello et al. 2019 | SDPA, 2-D relative logits |
| `axial_attention` | Ho et al. 2019; Wang et al. 2020 | SDPA along the height, then the width, relative logits |
| `local_attention` | Ramachandran et al. 2019 | SDPA over tiles and their surroundings, 7x7, relative logits |
| `local_relation` | Hu et al. 2019, LR-Net | sums of shifted maps, 7x7 |
| `pairwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `patchwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `performer_relu` | Choromanski et al. 2020 | linear attention on orthogonal random features, ReLU |
| `performer_softmax` | Choromanski et al. 2020 | linear attention on orthogonal random features, positive, of softmax |
| `lambda` | Bello 2021 | `LambdaLayer2d` |

Each docstring in `lambdanets.layers.baselines` has the equation, the cost, and what of the original is left out.
Each mixer is tested against plain loops over positions."""


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
