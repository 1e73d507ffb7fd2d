"""Annotations find their images in folders and tars; subsets, sizes and fingerprints of annotated sets."""

import pickle
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from coco_files import annotation, content, image, png, write, write_folder, write_tar
from PIL import Image

from lambdanets.data.coco.annotations import AnnotatedImages, Category
from lambdanets.data.coco.images import open_annotated
from lambdanets.data.images import UnreadableImage
from lambdanets.errors import InputError
from lambdanets.inference.coco_predictor import open_validation

FILES = {"1.png": png(value=10), "2.png": png(value=20)}
both_sources = pytest.mark.parametrize("write_images", [write_folder, write_tar])


def open_set(folder: Path, files: dict[str, bytes], *names: str, write_images: Any = write_folder) -> AnnotatedImages:
    """Open images whose files have these names in the annotations, by default 1.png and 2.png."""
    rows = [image(number, name) for number, name in enumerate(names or ("1.png", "2.png"), 1)]
    annotations = content(*(annotation(5 + number, image_id=row["id"]) for number, row in enumerate(rows)), images=rows)
    return open_annotated(write(folder / "a.json", annotations), write_images(folder / "f", files))


def first_pixels(images: AnnotatedImages) -> list[int]:
    return [images.load(index)[0].getpixel((0, 0)) for index in range(len(images))]


@both_sources
@pytest.mark.parametrize("folder", ["", "train2017/", "./"])
def test_folder_and_tar_have_the_same_images(tmp_path: Path, folder: str, write_images: Callable[..., Path]) -> None:
    images = open_set(tmp_path, {folder + name: data for name, data in FILES.items()}, write_images=write_images)
    assert first_pixels(images) == [10, 20]
    loaded, annotated = images.load(1)
    assert (loaded.mode, loaded.size) == ("L", (30, 20))
    assert [obj.id for obj in annotated.objects] == [6]
    assert str(annotated.file).endswith("2.png")
    assert images.problems == {}


@both_sources
@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["1.png", "2.png"], ["train/1.png", "./train/2.png"]),
        (["left/x.png", "right/x.png"], ["left/x.png", "right/x.png"]),
        (["1.png", "old/1.png"], ["1.png"]),
        (["a.png", "A.png"], ["a.png", "A.png"]),
        *(
            (["images/A 1.png", "B.png"], [name])
            for name in (r"images\A 1.png", r"C:\images\A 1.png", "IMAGES/a 1.PNG", "A%25201.png", "?d=images/A 1.png")
        ),
        *(
            ([f"训练/{name}", f"#recycle/训练/{name}"], [name])
            for name in ("图像 一.png", "no suffix", "50% [x]*?.JPG")
        ),
        ([unicodedata.normalize(form, "é.png") for form in ("NFC", "NFD")],) * 2,
    ],
    ids=str,
)
def test_file_names_find_their_files(
    tmp_path: Path, files: list[str], names: list[str], write_images: Callable[..., Path]
) -> None:
    contents = {name: png(value=10 * number) for number, name in enumerate(files, 1)}
    images = open_set(tmp_path, contents, *names, write_images=write_images)
    assert first_pixels(images) == [10 * number for number in range(1, len(names) + 1)]
    assert len(images.fingerprint) == 64


def test_a_missing_image_does_not_get_the_file_of_another_folder(tmp_path: Path) -> None:
    contents = {name: png() for name in ("cam1/1.png", "cam1/2.png", "cam2/2.png")}
    images = open_set(tmp_path, contents, "cam1/1.png", "cam2/1.png", "cam2/2.png", write_images=write_folder)
    assert [image.name for image in images.images] == ["cam1/1.png", "cam2/2.png"]
    assert images.problems["images dropped: their files are missing"] == [2]


def test_a_folder_of_all_images_may_have_another_name(tmp_path: Path) -> None:
    images = open_set(tmp_path, {"new/1.png": png(value=9)}, "data/old/1.png", write_images=write_folder)
    assert first_pixels(images) == [9]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_match_across_unicode_normal_forms(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    name, other_form = "한글é.png", {"NFC": "NFD", "NFD": "NFC"}[form]
    rows = [image(1, unicodedata.normalize(form, name))]
    folder = write_folder(tmp_path / "f", {unicodedata.normalize(other_form, f"é/{name}"): png(value=7)})
    coco = content(annotation(1), images=rows) | {"categories": [{"id": 7, "name": unicodedata.normalize(form, "é")}]}
    of_training = (Category(7, unicodedata.normalize(other_form, "é")),)
    recipe = {"validation_data": write(tmp_path / "a.json", coco), "images": folder}
    assert first_pixels(open_validation(recipe, of_training)) == [7]


def test_a_category_of_training_is_kept_without_annotations(tmp_path: Path) -> None:
    categories = [{"id": 1, "name": "cell", "supercategory": "none"}]
    categories += [{"id": 7, "name": "dividing", "supercategory": "cell"}]
    rows = content(annotation(1, category_id=7), images=[image(1, "1.png")]) | {"categories": categories}
    path, folder = write(tmp_path / "a.json", rows), write_folder(tmp_path / "f", FILES)
    of_training = (Category(1, "cell"), Category(7, "dividing"))
    assert open_validation({"validation_data": path, "images": folder}, of_training).categories == of_training
    assert open_annotated(path, folder).categories == of_training[1:]


@pytest.mark.parametrize(
    ("files", "names", "message"),
    [
        (["a.png", "A.png"], ["A.PNG"], r"one file for 'A\.PNG', got "),
        (["a/1.png", "b/1.png", "2.png"], ["1.png", "2.png"], r"one file for '1\.png', got a/1\.png, b/1\.png"),
        (["x.png"], ["left/x.png", "right/x.png"], r"got only 'x\.png' for left/x\.png, right/x\.png"),
        (["a.png", "b.png"], ["a.png", "./a.png"], r"got only 'a\.png' for "),
        (["1.png"], ["1.png", "2.png", "3.png"], r"contain the 3 images of '.*', got 1 of them; the first .* '2\.png'"),
        ([], ["1.png"], "contain the 1 image of '.*', got none of them; the first that is missing is '1.png'"),
        (["3.png"], ["1.png"], "got none of them"),
    ],
)
@both_sources
def test_ambiguous_and_mostly_missing_files_are_refused(
    tmp_path: Path, files: list[str], names: list[str], message: str, write_images: Callable[..., Path]
) -> None:
    (tmp_path / "f").mkdir() if write_images is write_folder else None
    with pytest.raises(InputError, match=message):
        open_set(tmp_path, dict.fromkeys(files, png()), *names, write_images=write_images)


def test_images_without_a_file_are_dropped_with_their_objects(tmp_path: Path) -> None:
    images = open_set(tmp_path, {"2.png": FILES["2.png"]})
    assert first_pixels(images) == [20]
    assert images.problems.left_out == {"of the images": 1, "of the annotations": 1}
    assert images.problems.lines() == [
        "images dropped: their files are missing (1 id: 1)",
        "annotations dropped: the files of their images are missing (1 id: 5)",
    ]
    assert [entry["id"] for entry in images.to_coco()["annotations"]] == [6]


@both_sources
def test_damaged_removed_and_resized_images_are_unreadable(tmp_path: Path, write_images: Callable[..., Path]) -> None:
    files = {"1.png": png()[:40], "2.png": b"text", "3.png": png(height=21)}
    images = open_set(tmp_path, files, *files, write_images=write_images)
    for index, reason in enumerate((r"f/1\.png", r"f/2\.png", "must be the annotated 30 x 20 pixels, got 30 x 21")):
        with pytest.raises(UnreadableImage, match=reason):
            images.load(index)
    (tmp_path / "f").rename(tmp_path / "g")
    reason = "its folder is missing" if write_images is write_folder else "no such file"
    with pytest.raises(InputError, match=reason):
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


@both_sources
def test_selected_images_are_in_the_order_of_the_indices(tmp_path: Path, write_images: Callable[..., Path]) -> None:
    images = open_set(tmp_path, FILES, write_images=write_images)
    selected = pickle.loads(pickle.dumps(images.select([1, 0])))
    assert first_pixels(selected) == [20, 10]
    assert [annotated.id for _, annotated in map(selected.load, range(2))] == [2, 1]


def test_fingerprint_depends_on_names_and_objects_and_not_on_paths(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", FILES | {"3.png": png()})
    original = content(annotation(1))
    changed = [content(annotation(1, **fields)) for fields in ({"bbox": [2, 3, 6, 5]}, {"iscrowd": 1}, {"image_id": 2})]
    changed += [content(annotation(1), images=[image(1), image(2, "3.png")])]
    changed += [original | {"categories": [{"id": 7, "name": "seven"}, {"id": 3, "name": "tree"}]}]
    sets = [open_annotated(write(tmp_path / "a.json", each), folder) for each in (original, *changed)]
    assert len({images.fingerprint for images in sets}) == len(sets) == 6
    moved = open_annotated(write(tmp_path / "b.json", original), write_tar(tmp_path / "f.tar", FILES))
    assert moved.fingerprint == sets[0].fingerprint
