"""ImageNet, 350 epochs, MobileNet-v2 with lambda layers (Sec. F.3, Table 17): 73.3% top-1 in the paper.

Batch size 4096 on 32 devices. The paper does not give the training time; estimate it with --dry-run. The optimizer is
RMSProp; the learning rate is multiplied by 0.99 every 3 epochs. Batch norm decay (0.99) and EMA are those of Howard et
al. (2019), which the paper cites. Neither paper gives warm-up and label smoothing; here they are 5 epochs and 0.1, as
in the paper's other recipes. Baseline: imagenet_mobilenetv2_convolution, without lambda layers (72.7%).
Not run in full; --quicktest runs the same code for a few steps on small scanned digits.
Run: lambdanets train imagenet_mobilenetv2 --data SHARDS --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets_lab.recipes.imagenet_90 import recipe as imagenet_90

recipe = replace(
    imagenet_90,
    model="mobilenetv2_lambda",
    model_options={},
    batch_norm_momentum=0.01,
    epochs=350,
    optimizer="rmsprop",
    learning_rate=0.1,
    momentum=0.9,
    schedule="staircase",
    decay=0.99,
    decay_epochs=3.0,
    weight_decay=1e-5,
    dropout=0.2,
)

recipes = {"convolution": replace(recipe, model="mobilenetv2_100")}
