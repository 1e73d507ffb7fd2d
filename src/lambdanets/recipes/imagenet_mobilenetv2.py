"""ImageNet, 350 epochs, MobileNet-v2 with lambda layers (Sec. F.3, Table 17): the paper has 73.3% top-1, 72.7% without.

Batch 4096 on 32 devices, hours not known (--plan measures the device at hand). RMSProp, the learning rate times 0.99
every 3 epochs; batch norm decay 0.99 and averaged weights are those of Howard et al. (2019), as the paper says. Neither
names a warm-up length or label smoothing; here they are 5 epochs and 0.1, as in the paper's other set-ups.
imagenet_mobilenetv2_convolution is the network without lambda layers.
Not run in full by this project; --quicktest takes the same path with scanned digits in a minute on two cores.
Run: lambdanets train imagenet_mobilenetv2 --data SHARDS --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets.recipes.imagenet_90 import recipe as imagenet_90

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
