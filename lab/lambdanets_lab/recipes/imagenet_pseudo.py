"""ImageNet and 130 million pseudo-labeled images, LambdaResNets (Tables 5 and 18): 82.1% to 86.7% top-1 in the paper.

The same as imagenet_350, with 14 pseudo-labeled images per labeled image in a step. The paper does not give this ratio;
Noisy Student (Xie et al. 2020) uses it for its larger models. According to the throughput in Table 5, training takes 18
hours on 512 TPUv3 cores (docs/scale.md). Each row of Table 18 with an accuracy has a variant, from
imagenet_pseudo_50_128 (82.1%) to imagenet_pseudo_152_288, which is the same as imagenet_pseudo (86.7%). The paper's
images and teacher are not public: label your own images with `lambdanets pseudo-label`. To use several machines, see
examples/slurm.sh.
Not run in full.
Run: lambdanets train imagenet_pseudo --data SHARDS --pseudo-labels SELECTION --pseudo-images MORE --devices 8 --run DIR
"""

from lambdanets_lab.pseudo.recipe import StudentRecipe
from lambdanets_lab.recipes.imagenet_350 import recipes as supervised

TABLE_18 = ("50_128", "50_160", "101_160", "101_192", "152_192", "152_224", "152_288")

recipes = {row: StudentRecipe(**vars(supervised[row]), pseudo_ratio=14.0) for row in TABLE_18}
recipe = recipes["152_288"]
