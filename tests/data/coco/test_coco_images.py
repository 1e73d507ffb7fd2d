import gzip
import os
import pickle
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from coco_files import annotation, content, decode_mask, image, png, write, write_folder, write_tar
from PIL import Image

from lambdanets.data.coco.annotations import Category
from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.segmentations import encode_rle
from lambdanets.data.coco.sets import open_with_categories
from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError

FILES = {"1.png": png(value=10), "2.png": png(value=20)}


def write_set(folder: Path, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write(folder / "a.json", content(annotation(5, image_id=2), annotation(6), annotation(7), **options))


def first_pixels(images: AnnotatedImages) -> list[int]:
    return [images.load(index)[0].getpixel((0, 0)) for index in range(len(images))]


@pytest.mark.parametrize(
    "write_images",
    [
        lambda folder: write_folder(folder / "direct", FILES),
        lambda folder: write_folder(folder / "root", {f"train2017/{name}": data for name, data in FILES.items()}),
        lambda folder: write_tar(folder / "direct.tar", FILES),
        lambda folder: write_tar(folder / "below.tar", {f"train2017/{name}": data for name, data in FILES.items()}),
        lambda folder: write_tar(folder / "dots.tar", {f"./{name}": data for name, data in FILES.items()}),
    ],
    ids=["folder", "subfolder", "tar", "tar with a folder", "tar with dots"],
)
def test_folder_and_tar_have_the_same_images(tmp_path: Path, write_images: Callable[[Path], Path]) -> None:
    images = open_annotated(write_set(tmp_path), write_images(tmp_path))
    assert len(images) == 2
    assert first_pixels(images) == [10, 20]
    loaded, annotated = images.load(1)
    assert (loaded.mode, loaded.size) == ("L", (30, 20))
    assert [obj.id for obj in annotated.objects] == [5]
    assert images.name(1).endswith("2.png")
    assert images.problems.counts() == {}


def test_file_names_may_include_the_name_of_the_folder(tmp_path: Path) -> None:
    names = [image(1, "train/1.png"), image(2, "./train/2.png")]
    images = open_annotated(write_set(tmp_path, images=names), write_folder(tmp_path / "train", FILES))
    assert first_pixels(images) == [10, 20]


def test_equal_base_names_are_matched_by_their_folders(tmp_path: Path) -> None:
    names = [image(1, "left/x.png"), image(2, "right/x.png")]
    files = {"right/x.png": png(value=2), "left/x.png": png(value=1)}
    assert first_pixels(open_annotated(write_set(tmp_path, images=names), write_folder(tmp_path / "f", files))) == [
        1,
        2,
    ]


def test_an_exact_match_is_preferred_to_a_longer_path(tmp_path: Path) -> None:
    files = FILES | {"old/1.png": png(value=99)}
    assert first_pixels(open_annotated(write_set(tmp_path), write_folder(tmp_path / "f", files))) == [10, 20]


@pytest.mark.parametrize("write_images", [write_folder, write_tar])
@pytest.mark.parametrize(
    "name",
    [
        r"images\A 1.png",
        r"C:\data\images\A 1.png",
        r"..\media\images\A 1.png",
        "a 1.PNG",
        "IMAGES/a 1.png",
        "A%201.png",
    ],
)
def test_file_names_of_other_systems_are_found(tmp_path: Path, name: str, write_images: Callable[..., Path]) -> None:
    annotations = write(tmp_path / "a.json", content(annotation(1), images=[image(1, name)]))
    images = open_annotated(annotations, write_images(tmp_path / "f", {"images/A 1.png": png(value=7), "B.png": png()}))
    assert first_pixels(images) == [7]


def test_names_that_differ_only_in_case_are_distinct_or_ambiguous(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", {"a.png": png(value=10), "A.png": png(value=20)})
    rows = [image(1, "a.png"), image(2, "A.png")]
    annotations = write(tmp_path / "a.json", content(annotation(1), images=rows))
    assert first_pixels(open_annotated(annotations, folder)) == [10, 20]
    annotations = write(tmp_path / "a.json", content(annotation(1), images=[image(1, "A.PNG")]))
    with pytest.raises(InputError, match=r"one file for 'A\.PNG', got "):
        open_annotated(annotations, folder)


def test_an_annotation_file_of_other_images_is_refused(tmp_path: Path) -> None:
    rows = [image(number) for number in range(1, 6)]
    with pytest.raises(InputError, match=r"must contain the 5 images of '.*', got 2 of them; the first .* '3\.png'"):
        open_annotated(write_set(tmp_path, images=rows), write_folder(tmp_path / "f", FILES))


def test_rejects_an_image_that_matches_two_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", {"a/1.png": png(), "b/1.png": png(), "2.png": png()})
    with pytest.raises(InputError, match=r"one file for '1\.png', got a/1\.png, b/1\.png"):
        open_annotated(write_set(tmp_path), folder)


def test_rejects_two_images_that_match_one_file(tmp_path: Path) -> None:
    names = [image(1, "left/x.png"), image(2, "right/x.png")]
    with pytest.raises(InputError, match=r"got only 'x\.png' for left/x\.png, right/x\.png"):
        open_annotated(write_set(tmp_path, images=names), write_folder(tmp_path / "f", {"x.png": png()}))


def test_images_without_a_file_are_dropped_with_their_objects(tmp_path: Path) -> None:
    images = open_annotated(write_set(tmp_path), write_folder(tmp_path / "f", {"2.png": FILES["2.png"]}))
    assert first_pixels(images) == [20]
    assert images.problems.left_out == {"images": 1, "annotations": 2}
    assert images.problems.lines() == [
        "1 images dropped: their files are missing (id 1)",
        "2 annotations dropped: the files of their images are missing (id 6, 7)",
    ]
    assert [entry["id"] for entry in images.annotations.to_coco()["annotations"]] == [5]


def write_gzipped_tar(path: Path) -> None:
    path.write_bytes(gzip.compress(write_tar(path.with_suffix(".complete"), FILES).read_bytes()))


def write_truncated_tar(path: Path, size: int = 1500) -> None:
    path.write_bytes(write_tar(path.with_suffix(".complete"), FILES).read_bytes()[:size])


@pytest.mark.parametrize(
    ("write_source", "message"),
    [
        (lambda path: None, "uncompressed tar.*No such file"),
        (lambda path: path.write_bytes(b"text" * 500), "uncompressed tar"),
        (write_gzipped_tar, "uncompressed tar"),
        (write_truncated_tar, "uncompressed tar"),
        (lambda path: write_truncated_tar(path, 1124), "uncompressed tar.*truncated after 1124 bytes"),
        (lambda path: write_truncated_tar(path, 1024), "uncompressed tar.*truncated after 1024 bytes; copy it again"),
        (os.mkfifo, "uncompressed tar.*it is a named pipe, not a file"),
        (
            lambda path: path.mkdir(),
            r"must contain the 2 images of '\S*a.json', got none of them; the first that is missing is '1.png'",
        ),
        (lambda path: write_tar(path, {}), "got none"),
        (lambda path: write_tar(path, {"3.png": png()}), "got none"),
    ],
    ids=[
        "missing",
        "text",
        "gzip",
        "truncated",
        "truncated in a header",
        "truncated between members",
        "pipe",
        "empty folder",
        "empty tar",
        "other images",
    ],
)
def test_rejects_a_source_without_matching_images(
    tmp_path: Path, write_source: Callable[[Path], Any], message: str
) -> None:
    write_source(tmp_path / "images")
    with pytest.raises(InputError, match=message):
        open_annotated(write_set(tmp_path), tmp_path / "images")


@pytest.mark.parametrize("write_images", [write_folder, write_tar])
def test_a_damaged_image_is_unreadable(tmp_path: Path, write_images: Callable[..., Path]) -> None:
    images = open_annotated(write_set(tmp_path), write_images(tmp_path / "f", {"1.png": png()[:40], "2.png": b"text"}))
    for index in range(2):
        with pytest.raises(UnreadableImage, match=rf"f/{index + 1}\.png"):
            images.load(index)


@pytest.mark.parametrize("write_images", [write_folder, write_tar])
def test_an_image_removed_after_opening_is_unreadable(tmp_path: Path, write_images: Callable[..., Path]) -> None:
    images = open_annotated(write_set(tmp_path), write_images(tmp_path / "f", FILES))
    (tmp_path / "f").rename(tmp_path / "g")
    with pytest.raises(UnreadableImage, match="there is no such file"):
        images.load(0)


def test_an_image_that_differs_from_the_annotated_size_is_unreadable(tmp_path: Path) -> None:
    files = FILES | {"1.png": png(height=21)}
    images = open_annotated(write_set(tmp_path), write_folder(tmp_path / "f", files))
    with pytest.raises(UnreadableImage, match="must be the annotated 30 x 20 pixels, got 30 x 21"):
        images.load(0)


@pytest.mark.parametrize(("height", "width", "brightest"), [(20, 30, "left"), (30, 20, "top")])
def test_exif_orientation_is_ignored_if_the_annotations_ignore_it(
    tmp_path: Path, height: int, width: int, brightest: str
) -> None:
    pixels = np.zeros((20, 30), np.uint8)
    pixels[:, :15] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate clockwise: the stored left side is the top
    Image.fromarray(pixels).save(tmp_path / "1.png", exif=exif)
    rows = [image(1, height=height, width=width)]
    images = open_annotated(write(tmp_path / "a.json", content(annotation(1), images=rows)), tmp_path)
    loaded = np.asarray(images.load(0)[0])
    assert loaded.shape == (height, width)
    bright = loaded[:, : width // 2] if brightest == "left" else loaded[: height // 2]
    assert bright.min() == 255
    assert loaded.sum() == bright.sum()


@pytest.mark.parametrize("write_images", [write_folder, write_tar])
@pytest.mark.parametrize("name", ["图像 一.png", "صورة.png", "no suffix", ".hidden.png", "50% [x]*?.JPG", "a\nb.png"])
def test_file_names_may_be_in_any_script(tmp_path: Path, name: str, write_images: Callable[..., Path]) -> None:
    annotations = write(tmp_path / "a.json", content(annotation(1), images=[image(1, name)]))
    files = {f"训练/{name}": png(value=7), f"#recycle/训练/{name}": png(value=9)}
    images = open_annotated(annotations, write_images(tmp_path / "f", files))
    assert first_pixels(images) == [7]
    assert len(images.fingerprint) == 64


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_match_across_unicode_normal_forms(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    name, other_form = "한글é.png", {"NFC": "NFD", "NFD": "NFC"}[form]
    rows = [image(1, unicodedata.normalize(form, name))]
    folder = write_folder(tmp_path / "f", {unicodedata.normalize(other_form, f"é/{name}"): png(value=7)})
    coco = content(annotation(1), images=rows) | {"categories": [{"id": 7, "name": unicodedata.normalize(form, "é")}]}
    of_training = (Category(7, unicodedata.normalize(other_form, "é")),)
    assert first_pixels(open_with_categories(write(tmp_path / "a.json", coco), folder, of_training)) == [7]


def test_file_names_that_differ_only_in_unicode_form_are_distinct(tmp_path: Path) -> None:
    names = [unicodedata.normalize("NFC", "é.png"), unicodedata.normalize("NFD", "é.png")]
    folder = write_folder(tmp_path / "f", {names[0]: png(value=10), names[1]: png(value=20)})
    rows = [image(number, name) for number, name in enumerate(names, 1)]
    assert first_pixels(open_annotated(write(tmp_path / "a.json", content(annotation(1), images=rows)), folder)) == [
        10,
        20,
    ]


def test_a_file_name_may_be_invalid_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.png")
    try:
        write_folder(tmp_path / "f", {name: png(value=7)})
    except OSError:
        pytest.skip("the file system does not support names that are not UTF-8")
    annotations = write(tmp_path / "a.json", content(annotation(1), images=[image(1, name)]))
    images = open_annotated(annotations, tmp_path / "f")
    assert first_pixels(images) == [7]
    assert len(images.fingerprint) == 64


@pytest.mark.parametrize("write_images", [write_folder, write_tar])
def test_selected_images_are_in_the_order_of_the_indices(tmp_path: Path, write_images: Callable[..., Path]) -> None:
    images = open_annotated(write_set(tmp_path), write_images(tmp_path / "f", FILES))
    reversed_images = images.select([1, 0])
    assert first_pixels(reversed_images) == [20, 10]
    assert [annotated.id for _, annotated in map(reversed_images.load, range(2))] == [2, 1]
    assert first_pixels(images.select([1])) == [20]
    assert reversed_images.categories == images.categories


def test_annotated_images_can_be_pickled(tmp_path: Path) -> None:
    images = open_annotated(write_set(tmp_path), write_tar(tmp_path / "f.tar", FILES))
    restored = pickle.loads(pickle.dumps(images))
    assert first_pixels(restored) == [10, 20]
    assert restored.fingerprint == images.fingerprint


def test_fingerprint_does_not_depend_on_paths(tmp_path: Path) -> None:
    first = open_annotated(write_set(tmp_path), write_folder(tmp_path / "f", FILES))
    second = open_annotated(write_set(tmp_path / "other"), write_tar(tmp_path / "f.tar", FILES))
    assert first.fingerprint == second.fingerprint
    assert first.select([0]).fingerprint != first.fingerprint


RUNS = {"size": [20, 30], "counts": [43, 6, 14, 6, 14, 6, 14, 6, 14, 6, 14, 6, 451]}


@pytest.mark.parametrize(
    "fields",
    [
        {"category_id": 3},
        {"bbox": [2, 3, 6, 5]},
        {"area": 35},
        {"iscrowd": 1},
        {"id": 8},
        {"image_id": 2},
        {"segmentation": [[2, 3, 8, 3, 8, 9.5, 2, 9]]},
        {"segmentation": RUNS},
        {"segmentation": RUNS | {"counts": encode_rle(np.pad(np.ones((5, 6), bool), ((3, 12), (2, 22))))}},
    ],
)
def test_fingerprint_depends_on_each_annotation_field(tmp_path: Path, fields: dict[str, Any]) -> None:
    folder = write_folder(tmp_path / "f", FILES)
    first = open_annotated(write(tmp_path / "a.json", content(annotation(1))), folder)
    second = open_annotated(write(tmp_path / "a.json", content(annotation(1, **fields))), folder)
    assert second.problems.counts() == {}
    assert first.fingerprint != second.fingerprint


def test_fingerprint_depends_on_names_sizes_and_categories(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", FILES)
    original = content(annotation(1))
    changed = [
        content(annotation(1), images=[image(1), image(2, "3.png")]),
        content(annotation(1), images=[image(1), image(2, height=21)]),
        original | {"categories": [{"id": 7, "name": "seven"}, {"id": 3, "name": "tree"}]},
    ]
    (folder / "3.png").write_bytes(png())
    fingerprints = {
        open_annotated(write(tmp_path / "a.json", instances), folder).fingerprint for instances in [original, *changed]
    }
    assert len(fingerprints) == 4


@pytest.mark.skipif("LAMBDANETS_COCO_MINI" not in os.environ, reason="LAMBDANETS_COCO_MINI is not set")
def test_masks_of_coco_have_the_annotated_areas() -> None:
    folder = Path(os.environ["LAMBDANETS_COCO_MINI"])
    images = open_annotated(folder / "instances_train2017.json", folder / "train2017.tar")
    assert images.problems.counts() == {}
    assert len(images.categories) == 80
    ratios = []
    for index in range(len(images)):
        loaded, annotated = images.load(index)
        assert loaded.size == (annotated.width, annotated.height)
        ratios += [decode_mask(obj, annotated.height, annotated.width).sum() / obj.area for obj in annotated.objects]
    assert np.median(ratios) == pytest.approx(1, abs=0.02)
