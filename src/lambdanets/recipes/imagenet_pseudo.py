"""ImageNet and 130 million pseudo-labelled images, LambdaResNets (Tables 5 and 18): the paper has 82.1% to 86.7% top-1.

All else is as for 350 epochs. A step has 14 pseudo-labelled images for each labelled one, the ratio of Noisy Student's
larger models (Xie et al. 2020), which the paper follows and does not repeat: by Table 5's rate, 18 hours on 512 TPUv3
cores (docs/scale.md). One recipe for each row of Table 18 with a figure: imagenet_pseudo_152_288 (86.7%), which is the
recipe itself, to imagenet_pseudo_50_128 (82.1%). The paper's images and teacher are not public: label yours by
`lambdanets pseudo-label`. On several machines: examples/slurm.sh.
Not run in full by this project; --quicktest takes the same path with scanned digits in a minute on two cores.
Run: lambdanets train imagenet_pseudo --data SHARDS --pseudo-labels SELECTION --pseudo-images MORE --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.recipes.imagenet_350 import recipes as supervised

ROWS = ("50_128", "50_160", "101_160", "101_192", "152_192", "152_224", "152_288")

recipes = {row: replace(supervised[row], pseudo_labels="", pseudo_images="", pseudo_ratio=14.0) for row in ROWS}
recipe = recipes["152_288"]
