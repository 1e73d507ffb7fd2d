"""ImageNet, 350 epochs, LambdaResNets (Sec. F.3, Tables 18 and 20): 77.4% to 84.9% top-1 in the paper.

Batch size 4096: 128 images per device on 32 devices, or 64 on 64 devices. According to the paper's latencies (Table
18), training takes 1.8 hours on 32 TPUv3 cores for the smallest model and 68 hours for the largest. Each row of Table
20 has a variant named by depth and image size, such as imagenet_350_152_256 (83.8%). imagenet_350 is LambdaResNet-50 at
128x128 (77.4%). The largest variants (350_288, 350_320 and 420_320) hold out 2% of the training images for early
stopping and use the best epoch's weights. The paper does not give the patience; here it is 20 epochs.
Not run in full; --quicktest runs the same code for a few steps on small scanned digits.
Run: lambdanets train imagenet_350_152_256 --data SHARDS --devices 8 --run DIR
"""

from dataclasses import replace

from lambdanets_lab.recipes.imagenet_90 import recipe as imagenet_90

# Rows: depth, image size, RandAugment magnitude, dropout, stochastic depth rate.
TABLE_20 = (
    (50, 128, 10, 0.2, 0.0),
    (50, 160, 10, 0.2, 0.0),
    (101, 160, 10, 0.3, 0.0),
    (101, 192, 15, 0.2, 0.0),
    (152, 192, 15, 0.3, 0.0),
    (152, 224, 15, 0.3, 0.1),
    (152, 256, 15, 0.3, 0.1),
    (152, 288, 15, 0.3, 0.1),
    (270, 256, 15, 0.3, 0.1),
    (350, 256, 15, 0.3, 0.2),
    (350, 288, 15, 0.3, 0.2),
    (350, 320, 15, 0.3, 0.2),
    (420, 320, 15, 0.3, 0.2),
)

recipes = {
    f"{depth}_{size}": replace(
        imagenet_90,
        model=f"lambda_resnet{depth}",
        model_options={},
        image_size=size,
        crop_pct=size / (size + 32),
        rand_augment=f"rand-m{magnitude}-n2-mstd0-mmax{magnitude}",  # without mmax, timm's maximum magnitude is 10
        dropout=dropout,
        drop_path=drop_path,
        epochs=350,
        weight_decay=4e-5,
        hold_out=0.02 if (depth, size) >= (350, 288) else 0.0,
        patience=20 if (depth, size) >= (350, 288) else None,
    )
    for depth, size, magnitude, dropout, drop_path in TABLE_20
}
recipe = recipes["50_128"]
