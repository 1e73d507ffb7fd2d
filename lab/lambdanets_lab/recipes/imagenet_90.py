"""ImageNet, 90 epochs, ResNet-50 with lambda layers (Sec. F.3; Tables 3 and 12): 78.4% top-1 in the paper.

Batch size 4096: 128 images per device on 32 devices; fewer devices accumulate gradients. The paper does not give the
training time; estimate it with --dry-run. The variants are the patterns of Table 12: one letter for each of the
stages c2, c3, c4 and c5, where C means that its blocks use convolutions and L that they use lambda layers.
imagenet_90_cccc is ResNet-50 (76.9%), imagenet_90_llll is the same as imagenet_90 (78.4%), and imagenet_90_u4 has
intra-depth 4 and scope 7 (78.9%).
Not run in full; --quicktest runs the same code for a few steps on small scanned digits.
Run: lambdanets train imagenet_90 --data SHARDS --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.tasks.recipes import ClassificationRecipe

BATCH_SIZE = 4096

# The other hyperparameters are the defaults: 224x224, crops and flips, cosine schedule, weight decay, label smoothing.
recipe = ClassificationRecipe(
    model="resnet50_lambda",
    model_options={"pattern": "LLLL"},
    batch_norm_momentum=0.0001,  # TensorFlow's decay is 1 - 0.0001 = 0.9999
    epochs=90,
    batch_size=BATCH_SIZE,
    learning_rate=0.1 * BATCH_SIZE / 256,
    ema_decay=0.9999,
    workers=8,
    checkpoint_every=500,
)

PATTERNS = ("CCCC", "LCCC", "LLCC", "LLLC", "LLLL", "CLLL", "CCLL", "CCCL")
recipes = {pattern.lower(): replace(recipe, model_options={"pattern": pattern}) for pattern in PATTERNS}
recipes["u4"] = replace(recipe, model_options={"pattern": "LLLL", "intra_depth": 4, "scope": 7})
