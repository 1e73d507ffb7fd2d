import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_files import SQUARE, annotation, content, decode_mask, image, write

from lambdanets.data.coco.annotations import AnnotatedImages, read_annotations
from lambdanets.data.coco.segmentations import encode_rle
from lambdanets.errors import InputError


def read(folder: Path, *annotations: dict[str, Any], **options: Any) -> AnnotatedImages:
    return read_annotations(write(folder / "instances.json", content(*annotations, **options)))


def object_ids(annotations: AnnotatedImages) -> list[int]:
    return [obj.id for image in annotations.images for obj in image.objects]


def test_an_object_has_its_box_category_and_mask(tmp_path: Path) -> None:
    parsed = read(tmp_path, annotation(5, image_id=2))
    first, second = parsed.images
    assert (second.id, second.name, second.height, second.width, first.objects) == (2, "2.png", 20, 30, ())
    (obj,) = second.objects
    assert (obj.id, obj.category, obj.box, obj.area, obj.crowd) == (5, 1, (2.0, 3.0, 8.0, 9.0), 36.0, False)
    mask = decode_mask(obj, 20, 30)
    assert (mask.shape, mask.dtype) == ((20, 30), np.uint8)
    assert mask.sum() == mask[3:9, 2:8].sum() == 36
    assert parsed.problems == {}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])  # of Notepad and PowerShell, with byte order marks
def test_images_and_categories_are_in_order_of_ids_with_gaps(tmp_path: Path, encoding: str) -> None:
    images = [image(9), image(-4), image(5)]
    instances = content(*(annotation(number, 5, category_id=number) for number in (90, 0, 17)), images=images)
    instances["categories"] = [{"id": number, "name": f"c{number}"} for number in (90, 17, 0)]
    (tmp_path / "a.json").write_bytes(json.dumps(instances).encode(encoding))
    parsed = read_annotations(tmp_path / "a.json")
    assert [category.id for category in parsed.categories] == [0, 17, 90]
    assert [image.id for image in parsed.images] == [-4, 5, 9]
    assert {obj.id: obj.category for obj in parsed.images[1].objects} == {0: 0, 17: 1, 90: 2}
    assert [entry["category_id"] for entry in parsed.to_coco()["annotations"]] == [90, 0, 17]


def test_area_and_iscrowd_are_optional(tmp_path: Path) -> None:
    rows = [annotation(number, area=area) for number, area in enumerate((30.5, 0, -4.5, None, "missing"))]
    del rows[0]["iscrowd"], rows[4]["area"]
    objects = read(tmp_path, *rows).images[0].objects
    assert [(obj.area, obj.crowd) for obj in objects] == [(30.5, False), *[(36.0, False)] * 4]  # that of the mask


NO_MASK = "no segmentation, or one without pixels"
POLYGON, RLE = "polygons with fewer than 3 points", "an RLE that is damaged or not of the image"
SIZE = {"size": [20, 30]}
INVALID_SEGMENTATIONS = {
    NO_MASK: [None, {}, SIZE | {"counts": [600]}, SIZE | {"counts": [1, 0, 599]}, [[0.1, 0.2, 0.3, 0.2, 0.3, 0.4]]],
    POLYGON: [[[2, 3, 8, 3]], [[2, 3, 8, 3, 8, 9, 2]], [SQUARE, [2, 3, 8, 3, 8, 1e9]], "polygons", [2, "x"], [["x"]]],
    RLE: [
        *({"counts": [1, 599]}, {"size": [30, 20], "counts": [1, 599]}, SIZE),
        *(SIZE | {"counts": x} for x in ([1, 600], [1, -1, 600], [1, 2**80], ["a"], "1gc", "\u6f22", "")),
    ],
}


@pytest.mark.parametrize(
    ("problem", "fields"),
    [(problem, {"segmentation": value}) for problem, values in INVALID_SEGMENTATIONS.items() for value in values],
)
def test_an_invalid_annotation_is_dropped_and_counted(tmp_path: Path, problem: str, fields: dict[str, Any]) -> None:
    parsed = read(tmp_path, annotation(1), annotation(44, **fields), annotation(3))
    assert object_ids(parsed) == [1, 3]
    assert parsed.problems.left_out == {"of the annotations": 1}
    (line,) = parsed.problems.lines()
    assert line.startswith(f"annotations dropped: {problem}")
    assert line.endswith("(1 id: 44)")


def test_short_polygons_are_left_out_and_a_single_one_needs_no_list(tmp_path: Path) -> None:
    rows = [annotation(i, segmentation=[*short, SQUARE]) for i, short in enumerate(([], [[]], [[5], [2, 3, 8, 3, 8]]))]
    objects = read(tmp_path, *rows, annotation(9, segmentation=SQUARE)).images[0].objects
    assert all(obj.segmentation == objects[0].segmentation for obj in objects)


@pytest.mark.parametrize(
    "bbox",
    [
        *([2 / 30, 3 / 20, 6 / 30, 6 / 20], [2, 3, 0, 6], [2, 3, 6, -6], [31, 3, 6, 6], [20, 10, 6, 6]),
        *([2, 3, 20, 15], [], None),
    ],
)
def test_a_box_that_is_missing_or_contradicts_its_mask_is_replaced(tmp_path: Path, bbox: list[float] | None) -> None:
    parsed = read(tmp_path, annotation(1), annotation(9, bbox=bbox))
    assert parsed.images[0].objects[1].box == (2, 3, 8, 9)
    (line,) = parsed.problems.lines()
    assert line.startswith("boxes replaced" if bbox else "boxes missing")
    assert line.endswith("(1 id: 9)")
    assert not parsed.problems.left_out
    rows = [annotation(number, bbox=each) for number, each in enumerate((bbox, bbox, [0, 0, 8, 9]))]
    boxes = {obj.box for obj in read(tmp_path, *rows).images[0].objects}
    assert boxes == {(2, 3, 8, 9)} | (set() if bbox else {(0, 0, 8, 9)})


def test_boxes_are_clipped_to_the_image(tmp_path: Path) -> None:
    polygon = [[2, 0, 8, 0, 8, 9, 2, 9]]
    parsed = read(tmp_path, annotation(1, bbox=[2, -1, 6, 10], segmentation=polygon))
    assert parsed.images[0].objects[0].box == (2, 0, 8, 9)


def test_integers_may_be_written_as_floats(tmp_path: Path) -> None:
    rows = {"id": 1.0, "image_id": 1.0, "category_id": 7.0}
    parsed = read(tmp_path, annotation(1, **rows), images=[image(1) | {"height": 20.0, "width": 30.0}])
    assert (repr(parsed.images[0].height), object_ids(parsed)) == ("20", [1])


def test_crowd_regions_are_reported_and_kept(tmp_path: Path) -> None:
    parsed = read(tmp_path, annotation(1), annotation(9, iscrowd=1, bbox=[2, 3, 0, 6]))
    assert [(obj.crowd, obj.box) for obj in parsed.images[0].objects] == [(False, (2, 3, 8, 9)), (True, (2, 3, 8, 9))]
    box, crowd = parsed.problems.lines()
    assert box.startswith("boxes replaced")
    assert crowd.startswith("crowd regions (iscrowd 1) are neither trained on nor scored; write 0")
    assert crowd.endswith("(1 id: 9)")
    assert not parsed.problems.left_out


def test_a_file_of_mostly_invalid_annotations_is_refused(tmp_path: Path) -> None:
    assert len(object_ids(read(tmp_path, annotation(1), annotation(2, segmentation=[])))) == 1
    with pytest.raises(InputError, match=r"got 2 of 3 that cannot be used: annotations dropped.*\(2 ids: 2, 3\)"):
        read(tmp_path, annotation(1), annotation(2, segmentation=[]), annotation(3, segmentation=[]))


def test_a_group_of_categories_without_annotations_is_dropped(tmp_path: Path) -> None:
    instances = content(annotation(1), annotation(2))
    instances["categories"] = [{"id": 0, "name": "seven", "supercategory": "none"}]  # as Roboflow writes
    instances["categories"] += [each | {"supercategory": "seven"} for each in content()["categories"]]
    path = tmp_path / "a.json"
    parsed = read_annotations(write(path, instances))
    assert parsed.to_coco()["categories"] == [{"id": 3, "name": "three"}, {"id": 7, "name": "seven"}]
    (line,) = parsed.problems.lines()
    assert line.startswith("categories dropped")
    assert parsed.problems.left_out == {}  # of annotations and images
    instances["annotations"][1]["category_id"] = 0  # then it is not only a group
    with pytest.raises(InputError, match="categories with different name, got several seven"):
        read_annotations(write(path, instances))


@pytest.mark.parametrize("key", ["category_id", "image_id"])
def test_annotations_of_unknown_categories_and_images_are_refused(tmp_path: Path, key: str) -> None:
    counted = {"categories": [{"id": number, "name": f"c{number}"} for number in (1, 2, 3)]}
    counted["images"] = [image(number) for number in (1, 2, 3)]
    rows = [annotation(number, **{"category_id": 1, key: number}) for number in (0, 1, 2)]
    message = rf"^{key} of the annotations .* must be ids of the file .1 to 3., got 0; add or subtract 1 if"
    with pytest.raises(InputError, match=message):
        read_annotations(write(tmp_path / "a.json", content(*rows) | counted))


def changed(section: str, index: int, **fields: Any) -> dict[str, Any]:
    """An annotation file with other fields in an entry; without a field whose value is `...`."""
    instances = content(annotation(1), annotation(2))
    entry = instances[section][index] | fields
    instances[section][index] = {key: value for key, value in entry.items() if value is not ...}
    return instances


VALID = json.dumps(content(annotation(1))).encode()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"\x89PNG\r\n", "codec can't decode"),
        (VALID[: len(VALID) // 2], "Unterminated string"),
        (b'{"images":' + b"[" * 200_000, "recursion"),
        (b"[]", "must be a dictionary, got"),
        (VALID.replace(b'"area": 36', b'"area": NaN'), r"annotations\[0\].area must be a finite number"),
        ({"images": [], "annotations": []}, "categories must be given"),
        (content(images=[]), "images must have at least 1 item"),
        (changed("annotations", 1, image_id=...), r"annotations\[1\].image_id must be given, got none"),
        (changed("images", 0, width=0), "width must be greater than 0, got 0"),
        (changed("annotations", 0, bbox=[1, 2, 3, "x"]), r"bbox\[3\] must be a valid number"),
        (changed("annotations", 0, category_id=7.5), "category_id must be a valid integer"),
        (changed("images", 1, id=1), "images with different id, got several 1"),
        (changed("images", 1, file_name="1.png"), r"images with different name, got several 1\.png"),
        (changed("categories", 1, id=7), "categories with different id, got several 7"),
        (changed("categories", 1, name="seven"), "categories with different name, got several seven"),
    ],
)
def test_rejects_invalid_coco_instances_with_a_one_line_message(tmp_path: Path, file: Any, message: str) -> None:
    path = tmp_path / "instances.json"
    path.write_bytes(file if isinstance(file, bytes) else json.dumps(file).encode())
    with pytest.raises(InputError, match=rf"instances\.json.*{message}") as raised:
        read_annotations(path)
    assert "\n" not in str(raised.value)


def test_to_coco_returns_the_valid_annotations_unchanged(tmp_path: Path) -> None:
    mask = np.zeros((20, 30), bool)
    mask[3:9, 2:8] = True
    rle = {"size": [20, 30], "counts": encode_rle(mask, mask.shape)}
    rows = [
        annotation(1, area=33.25, bbox=[2, 3, 6, 7], segmentation=rle),
        annotation(2, iscrowd=1, segmentation=rle),
        annotation(3, segmentation=None),
        annotation(4, image_id=2),
    ]
    parsed = read(tmp_path, *rows)
    restored, selected = parsed.to_coco(), parsed.select([1]).to_coco()
    assert restored["annotations"] == [rows[0], rows[1], rows[3] | {"segmentation": rle}]
    assert restored["images"] == content()["images"]
    assert sorted(restored["categories"], key=lambda category: -category["id"]) == content()["categories"]
    assert [[entry["id"] for entry in selected[name]] for name in ("annotations", "images")] == [[4], [2]]
