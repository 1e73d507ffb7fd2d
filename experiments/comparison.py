"""docs/comparison.md and its pictures, from the results of `lambdanets compare`.

python experiments/comparison.py [--out FOLDER] reads experiments/results; people who read them wrote the paragraphs.
"""

import argparse
from pathlib import Path
from typing import Any

from lambdanets.evidence.studies.summary import described, draw_all, read_summary, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/xeon-2-cores/fashion_mnist.json"
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
`python experiments/comparison.py`."""

PARAGRAPHS = {
    "mixers": """\
Every layer with three seeds learns more from these images than the 3x3 convolution. Seed by seed the gain is 2.0 ±
0.4 for the Performer with softmax features, 1.9 ± 0.9 for axial attention, and 1.5 for the lambda layer, the
Performer with ReLU features and efficient attention. Three seeds do not tell these five apart, so the lambda layer is
among the first and not shown to be the first. Global attention (1.1), double attention (0.8) and augmented attention
(0.7) gain less, squeeze-and-excitation hardly anything. Of the first five, three know nothing of positions. Among all
layers with three seeds the lambda layer makes the smallest network. Of the layers over neighbourhoods of 7x7 there is
one run each, since it takes several times as long: patchwise attention has the best of all with its seed, local and
pairwise attention come near the convolution, but a single run says little. The
paper's own three rows keep their order, convolution, squeeze-and-excitation, lambda layer; that its gain of 1.5 on
ImageNet comes out to the tenth is chance.""",
    "performer": """\
A blog post of 2020 on lambda layers says that the Performer will likely beat them. With softmax features it is ahead
of the lambda layer by 0.5 ± 0.6, with ReLU features level: three seeds neither confirm nor refute it. Without
positions, as the Performer is, the lambda layer falls behind both. It has one set of keys for all its heads, the
Performer has keys for each of eight: on these images more keys make up for missing positions.""",
    "content_position": """\
As in Table 9, position alone comes close to both, 0.3 ± 0.3 below, and content alone is further behind, 0.7 ± 0.3. On
ImageNet it is 9.6 behind. Here convolutions stand before the first lambda layer in two of four stages, and the maps
are small: what a layer of content lacks was partly seen before.""",
    "scope": """\
The maps are 14x14 once and 7x7 twice: scopes of 15, 23 and 31 differ in the first of the three layers alone, and
there in offsets of more than 7. They cannot be told apart; 3x3 and 7x7 are about 1 below. That is the shape of Table
10, where accuracy stops growing at 15x15, on maps four times as wide.""",
    "normalization": """\
On ImageNet layers without batch norm cost 2.2, the other normalizations 0.3 and 0.4. Here the differences are
within twice the deviations or a single run: a training of 188 steps does not show what the paper saw. Keys without
any normalization, which cost 8.4 on ImageNet, have one run, 0.4 below.""",
}

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
