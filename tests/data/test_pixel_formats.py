"""One file gives the same pixels however it is read: in training, in Python, by commands and by the page."""

import functools
import io
import subprocess
import sys

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import lambdanets as ln
from data.coco import coco_files
from lambdanets.data.coco.images import open_annotated
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import ImageFiles

NOISE = np.random.default_rng(0)
GRAY, ALPHA = NOISE.integers(0, 256, (2, 9, 11), np.uint8)
RGB = NOISE.integers(0, 256, (9, 11, 3), np.uint8)
STACK = NOISE.integers(0, 256, (3, 9, 11), np.uint8)
GRAY_ALPHA, RGB_ALPHA = np.dstack([GRAY, ALPHA]), np.dstack([RGB, ALPHA])
BITS = (GRAY > 127).astype(np.uint8) * 255


def png(pixels):
    return imagecodecs.png_encode(pixels)


def pillow(pixels, image_format, mode=None, **options):
    content = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(content, image_format, **options)
    return content.getvalue()


def tiff(pixels, photometric="minisblack", **options):
    content = io.BytesIO()
    tifffile.imwrite(content, pixels, photometric=photometric, **options)
    return content.getvalue()


def deep(pixels):
    return pixels.astype(np.uint16) * 257


def invisible(pixels):
    return np.dstack([pixels[..., :-1], np.zeros_like(pixels[..., -1])])


def on_white(pixels):
    alpha = pixels[..., -1:] / 255
    return np.rint(pixels[..., :-1] * alpha + 255 * (1 - alpha)).astype(np.uint8).squeeze()


def rotated():
    exif = Image.Exif()
    exif[274] = 6
    return exif


CMYK, JPEG = Image.fromarray(RGB).convert("CMYK"), pillow(RGB, "JPEG")
PALETTE = Image.fromarray(RGB).quantize(16)
ALPHA_TAG = {"extrasamples": ["unassalpha"]}
# File name: content and pixels.
READABLE = {
    "gray8.png": (png(GRAY), GRAY),
    "gray16.png": (png(deep(GRAY)), GRAY),
    "gray16.tif": (tiff(deep(GRAY)), GRAY),
    "gray16_zstd_bigtiff.tif": (tiff(deep(GRAY), compression="zstd", bigtiff=True), GRAY),
    "gray32.tif": (tiff(deep(GRAY).astype(np.int32)), GRAY),
    "float.tif": (tiff(GRAY.astype(np.float32) / 255), GRAY),
    "half.tif": (tiff(GRAY.astype(np.float32) / 510), np.rint(GRAY.astype(np.float64) / 510 * 255)),
    "rgb16.png": (png(deep(RGB)), RGB),
    "rgb16.tif": (tiff(deep(RGB), "rgb"), RGB),
    "la8.png": (png(GRAY_ALPHA), on_white(GRAY_ALPHA)),
    "la16.png": (png(deep(GRAY_ALPHA)), on_white(GRAY_ALPHA)),
    "la16.tif": (tiff(deep(GRAY_ALPHA), planarconfig="contig", **ALPHA_TAG), on_white(GRAY_ALPHA)),
    "rgba8.png": (png(RGB_ALPHA), on_white(RGB_ALPHA)),
    "rgba16.png": (png(deep(RGB_ALPHA)), on_white(RGB_ALPHA)),
    "rgba16.tif": (tiff(deep(RGB_ALPHA), "rgb", **ALPHA_TAG), on_white(RGB_ALPHA)),
    "rgbx16.tif": (tiff(deep(RGB_ALPHA), "rgb", extrasamples=["unspecified"]), RGB),
    "inverted8.tif": (tiff(255 - GRAY, "miniswhite"), GRAY),
    "inverted16_lzw.tif": (tiff(65535 - deep(GRAY), "miniswhite", compression="lzw"), GRAY),
    "rgb8.jp2": (imagecodecs.jpeg2k_encode(RGB, 0, reversible=True), RGB),
    "rgb8_jpeg2000.tif": (tiff(RGB, "rgb", compression="jpeg2000"), RGB),  # as QuPath writes
    "bits.tif": (tiff(BITS > 0), BITS),
    "palette.png": (pillow(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "cmyk.jpg": (pillow(CMYK, "JPEG"), np.asarray(Image.open(io.BytesIO(pillow(CMYK, "JPEG"))).convert("RGB"))),
    "jpeg.tif": (pillow(RGB, "TIFF", compression="jpeg"), None),
    "rotated8.jpg": (pillow(RGB, "JPEG", exif=rotated()), np.rot90(np.asarray(Image.open(io.BytesIO(JPEG))), -1)),
    "rotated16.tif": (tiff(deep(GRAY), extratags=[(274, "H", 1, 6, False)]), np.rot90(GRAY, -1)),
}
CHOOSE = r"3 channels or planes \(axes .*\); save each as a file, or, .* choose one with --channel,"
INVISIBLE = "its alpha is 0 everywhere"
# File name: content and a part of the error message.
UNREADABLE = {
    "stack8.tif": (tiff(STACK, metadata={"axes": "ZYX"}), CHOOSE),
    "samples.tif": (tiff(np.moveaxis(STACK, 0, 2), planarconfig="contig"), CHOOSE),
    "nan.tif": (tiff(np.full((9, 11), np.nan, np.float32)), r"its floats must be in 0\.\.1, got nan to nan;"),
    "float255.tif": (tiff(GRAY.astype(np.float32)), r"its floats must be in 0\.\.1, got .*; divide the images"),
    "int17.tif": (tiff(deep(GRAY).astype(np.int32) * 2), r"its integers must be in 0\.\.65535, got"),
    "cmyk16.tif": (tiff(deep(RGB_ALPHA), "separated"), "SEPARATED colors cannot be read"),
    "invisible_rgba16.png": (png(deep(invisible(RGB_ALPHA))), INVISIBLE),
    "postscript.png": (pillow(RGB, "EPS"), "not an image of a known format"),
}


def write(folder, files):
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


load_once = functools.cache(ln.load)


def read_by_python(path, **options):
    return next(load_once("digits").decode(path, **options))


def read_by_page(path, **options):
    return read_image(io.BytesIO(path.read_bytes()), path.name, **options)


WAYS = (read_by_python, read_by_page)


def test_a_file_gives_the_same_pixels_in_every_way(tmp_path):
    (tmp_path / "images").mkdir()
    paths = write(tmp_path / "images", READABLE)
    labeled = ImageFiles(paths, [0] * len(paths))
    images = [labeled.load(index)[0] for index in range(len(paths))]
    rows = [coco_files.image(i, paths[i].name, image.height, image.width) for i, image in enumerate(images)]
    coco = coco_files.write(tmp_path / "objects.json", coco_files.content(images=rows))
    annotated = open_annotated(coco, tmp_path / "images")
    for index, (path, image) in enumerate(zip(paths, images, strict=True)):
        pixels = READABLE[path.name][1]
        if pixels is not None:
            assert image.mode == ("L" if pixels.ndim == 2 else "RGB"), path.name
            atol = 1 if "a" in path.name[:4] else 0
            np.testing.assert_allclose(np.asarray(image, int), pixels, atol=atol, err_msg=path.name)
        for other in (annotated.load(index)[0], *(read(path) for read in WAYS)):
            np.testing.assert_array_equal(np.asarray(other), np.asarray(image), err_msg=path.name)


@pytest.mark.parametrize("name", ["gray16.tif", "gray32.tif", "float.tif", "bits.tif", "rgb16.tif", "rgba16.tif"])
def test_arrays_and_tensors_give_the_pixels_of_their_file(name):
    content, pixels = READABLE[name]
    array = tifffile.imread(io.BytesIO(content))
    tensor = torch.from_numpy(array if array.ndim == 2 else array.transpose(2, 0, 1))
    for image in load_once("digits").decode([array, tensor]):
        np.testing.assert_array_equal(image, pixels)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_is_refused_with_the_same_sentence_in_every_way(name, tmp_path):
    (path,) = write(tmp_path, {name: UNREADABLE[name]})
    reasons = set()
    for read in (lambda path: ImageFiles([path], [0]).load(0), *WAYS):
        with pytest.raises(UnreadableImage, match=UNREADABLE[name][1]) as error:
            read(path)
        reasons.add(error.value.reason)
    assert len(reasons) == 1


def test_a_channel_is_chosen_alike_in_every_way(tmp_path):
    stacks = {name: file for name, file in UNREADABLE.items() if file[1] == CHOOSE}
    colors = {name: READABLE[name] for name in ("rgb16.tif", "rgb16.png", "rgba16.tif", "cmyk.jpg")}
    for path in write(tmp_path, stacks | colors):
        expected = STACK[1] if path.name in stacks else READABLE[path.name][1][..., 1]
        for read in WAYS:
            np.testing.assert_allclose(np.asarray(read(path, channel=1), int), expected, atol=1, err_msg=path.name)
        with pytest.raises(UnreadableImage, match="channel must be below 3, its number of channels or planes, got 3"):
            read_image(path, channel=3)


def test_a_compressed_file_names_the_extra_that_it_needs(tmp_path):
    paths = write(tmp_path, {name: READABLE[name] for name in ("inverted16_lzw.tif", "rgb16.png")})
    script = "import sys; sys.modules['imagecodecs'] = None\nfrom lambdanets.data.images import read_image\n"
    script += "for path in sys.argv[1:]:\n    try: read_image(path)\n    except ValueError as error: print(error)"
    output = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True).stdout
    assert output.count('its pixels need imagecodecs; install it with: pip install "lambdanets[detection]"') == 2


@pytest.mark.parametrize("encode", [lambda pixels: tiff(pixels, "rgb"), png])
def test_colors_whose_high_bytes_are_0_are_stretched(encode):
    content = encode(RGB.astype(np.uint16))  # Pillow keeps only the high byte of each sample
    assert len(np.unique(read_image(io.BytesIO(content), stretch=True))) > 100


def test_an_open_image_whose_low_bits_pillow_drops_is_refused(tmp_path):
    path = tmp_path / "deep.tif"
    path.write_bytes(tiff(deep(RGB), "rgb"))
    with Image.open(path) as image, pytest.raises(UnreadableImage, match="pass the path of the file"):
        read_image(image)
