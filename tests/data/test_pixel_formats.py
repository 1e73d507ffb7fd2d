"""One file gives the same pixels however it is read: in training, in Python, by three commands and by the page."""

import io
import json
import re
import subprocess
import sys

import imagecodecs
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import lambdanets as ln
from lambdanets.cli import main
from lambdanets.data.coco.images import open_annotated
from lambdanets.data.images import UnreadableImage, read_image
from lambdanets.data.labeled_images import ImageFiles
from lambdanets.inference.classifier import Classifier, Prediction
from lambdanets.inference.detector import Detector
from lambdanets.inference.inputs import image_batches
from lambdanets.inference.segmenter import Segmentation, Segmenter
from lambdanets.models.weights import save_weights
from lambdanets.tasks.detection import task as detection
from lambdanets.tasks.segmentation import task as segmentation
from lambdanets_lab.demo.uploads import read_upload
from training.detection.tiny_detection import tiny_recipe
from training.segmentation.tiny_segmentation import tiny_segmentation
from training.teachers import write_teacher

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
    "bits.tif": (tiff(BITS > 0), BITS),
    "palette.png": (pillow(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "cmyk.jpg": (pillow(CMYK, "JPEG"), np.asarray(Image.open(io.BytesIO(pillow(CMYK, "JPEG"))).convert("RGB"))),
    "jpeg.tif": (pillow(RGB, "TIFF", compression="jpeg"), None),
    "rotated8.jpg": (pillow(RGB, "JPEG", exif=rotated()), np.rot90(np.asarray(Image.open(io.BytesIO(JPEG))), -1)),
    "rotated16.tif": (tiff(deep(GRAY), extratags=[(274, "H", 1, 6, False)]), np.rot90(GRAY, -1)),
}
CHOOSE = r"3 channels or planes \(axes .*\); choose one with --channel, in Python with channel="
INVISIBLE = "its alpha is 0 everywhere"
# File name: content and a part of the error message.
UNREADABLE = {
    "stack8.tif": (tiff(STACK, metadata={"axes": "ZYX"}), CHOOSE),
    "samples.tif": (tiff(np.moveaxis(STACK, 0, 2), planarconfig="contig"), CHOOSE),
    "nan.tif": (tiff(np.full((9, 11), np.nan, np.float32)), "must be in"),
    "cmyk16.tif": (tiff(deep(RGB_ALPHA), "separated"), "SEPARATED colors have more than 8 bits"),
    "invisible_rgba16.png": (png(deep(invisible(RGB_ALPHA))), INVISIBLE),
    "postscript.png": (pillow(RGB, "EPS"), "not an image of a known format"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier, a detector and a segmenter, by their weight files."""
    folder = tmp_path_factory.mktemp("models")
    for module, recipe in (
        (detection, tiny_recipe(folder / "digits")),
        (segmentation, tiny_segmentation(folder / "two_categories")),
    ):
        card = module.make_model_card(recipe, ["cup"], category_ids=[1])
        path = folder / f"{module.__name__.split('.')[-2]}.safetensors"
        save_weights(path, module.build_model(recipe, ["cup"]), card.to_json(recipe.fields()))
    paths = (write_teacher(folder / "teacher"), folder / "detection.safetensors", folder / "segmentation.safetensors")
    return {path: ln.load(path) for path in paths}


@pytest.fixture
def seen(monkeypatch):
    """A list to which the three models add their input images as uint8 (H, W, 3), instead of running."""
    images = []

    def as_array(tensor):
        return (tensor * 255).round().byte().permute(1, 2, 0).numpy()

    def detect(self, tensors):
        images.extend(map(as_array, tensors))
        nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
        return [nothing | {"masks": torch.zeros(0, 1, *tensor.shape[1:])} for tensor in tensors]

    def segment(self, tensors, **options):
        images.extend(map(as_array, tensors))
        labels = [torch.zeros(tensor.shape[1:], dtype=torch.uint8) for tensor in tensors]
        return [Segmentation(torch.zeros(len(self.classes), *x.shape), x, self.classes) for x in labels]

    def classify(self, batch, **options):
        images.extend(np.asarray(image.convert("RGB")) for image in batch)
        return [Prediction(self.classes, torch.ones(len(self.classes))) for _ in batch]

    monkeypatch.setattr(Detector, "detect", detect)
    monkeypatch.setattr(Segmenter, "segment", segment)
    monkeypatch.setattr(Classifier, "infer", classify)
    return images


def write(folder, files):
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def read_in_all_ways(paths, models, seen, folder, capsys, *options):
    """Return the images of each way by file name; the images that one way cannot read are missing."""
    arguments = {"channel": int(options[1])} if options else {}
    ways = {}
    for index, predictor in enumerate(models.values()):
        for path in paths:
            predictor.predict(path, **arguments)
        ways[f"python {index}"] = dict(zip((path.name for path in paths), seen, strict=True))
        seen.clear()
    for number, model in enumerate(models):
        extra = [] if number == 0 else ["--no-figures"]
        out = str(folder / f"out{number}")
        assert main(["predict", str(model), *map(str, paths), *options, *extra, "--out", out]) == 0
        assert "unreadable" not in capsys.readouterr().err
        ways[f"command {number}"] = dict(zip((path.name for path in paths), seen, strict=True))
        seen.clear()
    return ways


def test_a_file_gives_the_same_pixels_in_every_way(models, seen, tmp_path, capsys):
    (tmp_path / "images").mkdir()
    paths = write(tmp_path / "images", READABLE)
    ways = read_in_all_ways(paths, models, seen, tmp_path, capsys)
    labeled = ImageFiles(paths, [0] * len(paths))
    ways["labeled"] = {path.name: labeled.load(index)[0] for index, path in enumerate(paths)}
    sizes = [image.size for image in ways["labeled"].values()]
    images = [
        {"id": i, "file_name": path.name, "width": size[0], "height": size[1]}
        for i, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]
    coco = {"images": images, "categories": [{"id": 1, "name": "cup"}]}
    coco["annotations"] = [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4], "iscrowd": 0}]
    coco["annotations"][0]["segmentation"] = [[0, 0, 4, 0, 4, 4, 0, 4]]
    (tmp_path / "objects.json").write_text(json.dumps(coco))
    annotated = open_annotated(tmp_path / "objects.json", tmp_path / "images")
    ways["annotated"] = {path.name: annotated.load(index)[0] for index, path in enumerate(paths)}
    ways["page"] = {path.name: read_upload(path.read_bytes(), path.name) for path in paths}
    for name, (_, pixels) in READABLE.items():
        image = ways["labeled"][name]
        if pixels is not None:
            assert image.mode == ("L" if pixels.ndim == 2 else "RGB"), name
            np.testing.assert_allclose(np.asarray(image, int), pixels, atol=1 if "a" in name[:4] else 0, err_msg=name)
        for way, read in ways.items():
            array = read[name] if isinstance(read[name], np.ndarray) else np.asarray(read[name].convert("RGB"))
            np.testing.assert_array_equal(array, np.asarray(image.convert("RGB")), err_msg=f"{name}, {way}")


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_is_refused_with_the_same_sentence_in_every_way(name, models, seen, tmp_path, capsys):
    (path,) = write(tmp_path, {name: UNREADABLE[name]})
    messages = []
    readers = [
        lambda: ImageFiles([path], [0]).load(0),
        lambda: read_upload(path.read_bytes(), str(path)),
        *(lambda model=model: model.predict(path) for model in models.values()),
    ]
    for read in readers:
        with pytest.raises(UnreadableImage) as error:
            read()
        messages.append(error.value.reason)
    for model in models:
        assert main(["predict", str(model), str(path), "--out", str(tmp_path / "out")]) == 2
        messages.append(re.search(rf"{re.escape(name)}: (.*)\n", capsys.readouterr().err)[1])
    assert re.search(UNREADABLE[name][1], messages[0])
    assert set(messages) == {messages[0]}
    assert not seen


def test_a_channel_is_chosen_alike_in_python_and_by_every_command(models, seen, tmp_path, capsys):
    stacks = {name: file for name, file in UNREADABLE.items() if file[1] == CHOOSE}
    (tmp_path / "images").mkdir()
    colors = {name: READABLE[name] for name in ("rgb16.tif", "rgb16.png", "rgba16.tif", "cmyk.jpg")}
    paths = write(tmp_path / "images", stacks | colors)
    for read in read_in_all_ways(paths, models, seen, tmp_path, capsys, "--channel", "1").values():
        for name, array in read.items():
            expected = STACK[1] if name in stacks else READABLE[name][1][..., 1]
            np.testing.assert_allclose(array.astype(int), expected[..., None].repeat(3, 2), atol=1, err_msg=name)
    for path in paths:
        with pytest.raises(UnreadableImage, match="channel must be below 3, its number of channels or planes, got 3"):
            read_image(path, channel=3)


def test_a_compressed_file_names_the_extra_that_it_needs(tmp_path):
    paths = write(tmp_path, {name: READABLE[name] for name in ("inverted16_lzw.tif", "rgb16.png")})
    script = "import sys; sys.modules['imagecodecs'] = None\nfrom lambdanets.data.images import read_image\n"
    script += "for path in sys.argv[1:]:\n    try: read_image(path)\n    except ValueError as error: print(error)"
    output = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True).stdout
    assert output.count("its pixels need imagecodecs; install it with: pip install 'lambdanets[detection]'") == 2


@pytest.mark.parametrize("encode", [lambda pixels: tiff(pixels, "rgb"), png])
def test_colors_whose_high_bytes_are_0_are_stretched(encode):
    content = encode(RGB.astype(np.uint16))  # Pillow keeps only the high byte of each sample
    assert len(np.unique(read_image(io.BytesIO(content), stretch=True))) > 100


def test_an_open_image_whose_low_bits_pillow_drops_is_refused(tmp_path):
    path = tmp_path / "deep.tif"
    path.write_bytes(tiff(deep(RGB), "rgb"))
    with Image.open(path) as image, pytest.raises(UnreadableImage, match="pass the path of the file"):
        next(image_batches(image, 1))
