# %% [markdown]
# # Nuclei in your microscope images
#
# The package has a trained detector for cell nuclei in fluorescence and stained tissue, 2.4 MB, without a download.
# This page goes from a file to outlines, counts, a table and a label image, in half a minute.
# `pip install ".[detection]"`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import tifffile
from PIL import Image, ImageDraw, ImageFilter

import lambdanets as ln

# %% [markdown]
# ## An image
#
# Use your own file: TIFF, PNG, JPEG and what else Pillow reads, with 8, 12 or 16 bits; of a file with several
# channels or planes, choose one with `channel=`. Here a micrograph is drawn and saved as a TIFF of 16 bits
# that uses only the lowest twelve of them, as cameras write them.

# %%
random = np.random.default_rng(0)
drawn = Image.new("L", (400, 300), 14)
centers = []
while len(centers) < 40:
    x, y = random.uniform((15, 15), (385, 285))
    if all(np.hypot(x - u, y - v) > 28 for u, v in centers):
        centers.append((x, y))
        shape = Image.new("L", drawn.size)
        width, height = random.uniform(8, 13, 2)
        ImageDraw.Draw(shape).ellipse((x - width, y - height, x + width, y + height), fill=255)
        drawn.paste(int(random.uniform(70, 200)), mask=shape.rotate(random.uniform(0, 180), center=(x, y)))
pixels = np.asarray(drawn.filter(ImageFilter.GaussianBlur(1.5)), np.float64) + random.normal(0, 3, (300, 400))
tifffile.imwrite("cells.tif", (16 * pixels.clip(0, 255)).astype(np.uint16))

# %% [markdown]
# ## Detect
#
# `load` takes the name of a model of the package, or the folder of your own run.

# %%
detector = ln.load("nuclei", device="cpu")
(detections,) = detector.predict("cells.tif")
nuclei = detections.above(0.5)
print(f"{len(nuclei)} nuclei of {len(centers)}, {len(detections)} with any score")
print("boxes", tuple(nuclei.boxes.shape), "masks", tuple(nuclei.masks.shape))

# %% [markdown]
# ## Look
#
# Masks are as large as the image. A label image, in which the pixels of object i have the value i, is what most
# tools of microscopy read (ImageJ, QuPath, napari, CellProfiler).

# %%
labels, _ = nuclei.label_image()  # where masks overlap, a pixel belongs to the object with the highest score
tifffile.imwrite("labels.tif", labels)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
axes[0].imshow(tifffile.imread("cells.tif"), cmap="gray")
axes[0].contour(labels > 0, levels=[0.5], colors="yellow", linewidths=0.7)
axes[1].imshow(np.ma.masked_equal(labels, 0), cmap="prism", interpolation="nearest")
for axis in axes:
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Measure

# %%
areas = nuclei.masks.flatten(1).sum(1).numpy()
print(f"area: median {np.median(areas):.0f} pixels, from {areas.min():.0f} to {areas.max():.0f}")

# %% [markdown]
# ## A folder of images, and your own model
#
# The command writes for each image a figure and a label image, for all of them a table and results in COCO
# format, and resumes if it was interrupted:
#
#     lambdanets predict nuclei MICROGRAPHS --out counted
#
# If your cells look different, train on your own outlines in COCO format (most annotation tools export it),
# starting from these weights:
#
#     lambdanets train nuclei --weights nuclei --data train.json --images PHOTOS --validation-data val.json
#
# [Detection](../detection.md) has the options, and what was measured on real nuclei.
