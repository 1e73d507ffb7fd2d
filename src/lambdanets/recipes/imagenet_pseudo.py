"""ImageNet and 130 million pseudo-labeled images, LambdaResNets (Tables 5 and 18): 82.1% to 86.7% top-1 in the paper.

As imagenet_350, with 14 pseudo-labeled images per labeled image in a step. The paper does not give the ratio; this one
is that of Noisy Student's larger models (Xie et al. 2020). By Table 5's throughput, 18 hours on 512 TPUv3 cores
(docs/scale.md). One variant per row of Table 18 with a reported accuracy, from imagenet_pseudo_50_128 (82.1%) to
imagenet_pseudo_152_288 (86.7%), the recipe itself. The paper's images and teacher are not public: label your own with
`lambdanets pseudo-label`. On several machines: examples/slurm.sh.
Not run in full; --quicktest runs the same code on scanned digits in a minute on two CPU cores.
Run: lambdanets train imagenet_pseudo --data SHARDS --pseudo-labels SELECTION --pseudo-images MORE --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.recipes.imagenet_350 import recipes as supervised

ROWS = ("50_128", "50_160", "101_160", "101_192", "152_192", "152_224", "152_288")

recipes = {row: replace(supervised[row], pseudo_labels="", pseudo_images="", pseudo_ratio=14.0) for row in ROWS}
recipe = recipes["152_288"]
