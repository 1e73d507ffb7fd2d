"""Fashion-MNIST (60,000 images, 28x28), small LambdaResNet: at least 90% top-1 on the 10,000 test images.

Hardware: two CPU cores, about seven minutes. Data: torchvision's FashionMNIST files in --data-root.
Run: lambdanets train fashion_mnist --data-root FOLDER
"""

from dataclasses import replace

from lambdanets.recipes.digits import recipe as digits

recipe = replace(
    digits,
    data="torch/fashion_mnist",
    image_size=28,
    epochs=2,
    scale=(0.85, 1.0),
    flip=0.5,
    warmup_epochs=0.2,
    mean=(0.286,),
    std=(0.353,),
    label_smoothing=0.0,
    weight_decay=2e-4,
)
