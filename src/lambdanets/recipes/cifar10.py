"""CIFAR-10 (60,000 images, 32x32), small LambdaResNet, 60 epochs: 92.35% top-1 on the 10,000 test images.

Hardware: two CPU cores, 95 minutes (137 while other jobs ran). One seed; not tuned. Data: torchvision's CIFAR-10 files
in --data-root, or --data FOLDER with train/CLASS/ and val/CLASS/. Baseline: cifar10_convolution, the same network with
3x3 convolutions instead of lambda layers, not measured yet.
Run: lambdanets train cifar10 --data-root FOLDER
"""

from dataclasses import replace

from lambdanets.recipes.digits import recipe as digits

recipe = replace(
    digits,
    data="torch/cifar10",
    channels=3,
    mean=(0.491, 0.482, 0.447),
    std=(0.247, 0.243, 0.262),
    image_size=32,
    scale=(1.0, 1.0),
    ratio=(1.0, 1.0),
    crop_padding=4,
    flip=0.5,
    epochs=60,
    batch_size=128,
    weight_decay=5e-4,
    warmup_epochs=1.5,
    ema_decay=0.998,
    workers=1,
)

recipes = {"convolution": replace(recipe, model="resnet20_mixer_small", model_options={"mixer": "convolution"})}
