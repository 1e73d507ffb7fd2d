"""Writes docs/comparison.md and its figures from the results of `lambdanets compare`.

python experiments/comparison.py [--out FOLDER] reads experiments/results. The text about the results is in this file
and must be changed by hand.
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
    lambdanets compare --resume comparisons/clothes     # after an interruption, or to use a second GPU
    lambdanets compare --report comparisons/clothes/results.json    # merges several files, such as of other seeds
    lambdanets compare scope digits --variants 3x3 7x7 --seeds 0 1 2 3 4
    lambdanets compare scope --help                     # studies and options

The first command reproduces this page in about two hours on two cores. It trains one network with different mixers in
place of its 3x3 convolutions; blocks, recipe, images and seeds are the same. In Python,
`create_model("resnet50_mixer", mixer="axial_attention", pattern="CCLL")` builds such a network.

Top-1 is the accuracy in percent on the 10,000 test images of Fashion-MNIST, after one epoch on 12,000 training images,
measured in November 2026. A paired difference is the difference in top-1 to the baseline with the same seed, as mean ±
std over seeds and with its 95% confidence interval by Student's t distribution, not corrected for multiple comparisons.
[Setup](#setup) has the details."""

PARAGRAPHS = {
    "mixers": """\
Every mixer with three seeds has a higher mean than the 3x3 convolution. The paired gain is 2.0 ± 0.4 points for the
Performer with softmax features, 1.9 ± 0.9 for axial attention, and 1.5 for the lambda layer, the Performer with
ReLU features and efficient attention. Three seeds are too few to rank these five: the lambda layer is among the best,
but not shown to be the best. The gain of global attention (1.1), double attention (0.8), augmented attention (0.7) and
squeeze-and-excitation (0.2) is smaller. Three of the best five use no positions. Among the mixers with three seeds, the
lambda layer gives the network with the fewest parameters.

The mixers over 7x7 neighborhoods were trained with only one seed, since they take several times as long. Patchwise
attention has the highest top-1 with that seed; local and pairwise attention are close to the convolution. One seed is
little evidence. The three layers that the paper compares have the same order here: convolution, squeeze-and-excitation,
lambda layer. The gain of 1.5 equals the paper's gain on ImageNet by chance.""",
    "performer": """\
The Performer is 0.5 ± 0.6 points ahead of the lambda layer with softmax features, and equal with ReLU features: three
seeds are too few to rank them. Without positions, which the Performer does not use either, the lambda layer is behind
both. It has one set of keys for all heads, the Performer one for each of its eight heads; on these images, more keys
may compensate for missing positions.""",
    "content_position": """\
As in Table 9, position lambdas alone are only 0.3 ± 0.3 points behind both together, and content lambdas alone are
0.7 ± 0.3 points behind (9.6 on ImageNet). Here two of four stages are convolutions before the first lambda layer, and
the maps are small, so less position information may be missing.""",
    "scope": """\
One lambda layer has maps of 14x14, the other two 7x7: scopes of 15, 23 and 31 differ only in the first layer, and there
only in offsets of more than 7. Their top-1 differs by less than the std; 3x3 and 7x7 are about 1 point lower. In Table
10, on maps four times as wide, accuracy also stops growing at 15x15.""",
    "normalization": """\
On ImageNet, training without batch norm costs 2.2 points, and without the other normalizations 0.3 and 0.4. Here the
differences are less than twice the std, or from a single seed: 188 training steps do not show the paper's effect. Keys
without normalization cost 8.4 points on ImageNet, and 0.4 points here with one seed.""",
}

SETUP = """\
## Setup

{setup}

- The network is a ResNet of 20 layers, 16 to 128 channels wide, with the mixer in c4 and c5: once on 14x14 maps and
  twice on 7x7 maps.
- The seed determines the initial weights, the 12,000 training images, and their order and augmentation. The 10,000 test
  images are always the same.
- Learning rate, warm-up and weight decay are those of the recipe, and were not tuned for any mixer.

One epoch on a fifth of a small dataset shows how fast mixers learn from few images. It does not show their accuracy
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

The docstrings in `lambdanets.layers.baselines` have the equations, the costs, and the differences from the original.
Tests compare each mixer with a reference implementation that loops over positions."""


def page(summary: dict[str, Any]) -> str:
    """The text of docs/comparison.md: one section per study, with a figure, a table and a paragraph."""
    sections = ["# Mixers compared", OPENING]
    for name, study in summary["studies"].items():
        question = STUDIES[name].question
        sections += [f"## {question}", f"![{question}](comparison/{name}.png)"]
        sections += [table(study), PARAGRAPHS[name]]
    return "\n\n".join([*sections, SETUP.format(setup=describe_setup(summary)), CLOSING]) + "\n"


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
