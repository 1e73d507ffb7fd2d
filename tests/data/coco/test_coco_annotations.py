import io
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_files import BOX, SQUARE, annotation, content, image, write
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from lambdanets.data.coco.annotations import Annotations, decode_mask, read_annotations
from lambdanets.errors import InputError


def read(folder: Path, *annotations: dict[str, Any], **options: Any) -> Annotations:
    return read_annotations(write(folder / "instances.json", content(*annotations, **options)))


def object_ids(annotations: Annotations) -> list[int]:
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
    assert parsed.problems.lines() == []
    assert parsed.problems.counts() == {}


def test_categories_are_indexed_in_order_of_ids_with_gaps(tmp_path: Path) -> None:
    instances = content(*(annotation(number, category_id=number) for number in (90, 0, 17)))
    instances["categories"] = [{"id": number, "name": f"c{number}"} for number in (90, 17, 0)]
    parsed = read_annotations(write(tmp_path / "a.json", instances))
    assert [category.id for category in parsed.categories] == [0, 17, 90]
    assert {obj.id: obj.category for obj in parsed.images[0].objects} == {0: 0, 17: 1, 90: 2}
    assert [entry["category_id"] for entry in parsed.to_coco()["annotations"]] == [90, 0, 17]


def test_images_are_in_order_of_ids(tmp_path: Path) -> None:
    parsed = read(tmp_path, images=[image(9), image(-4), image(5)])
    assert [image.id for image in parsed.images] == [-4, 5, 9]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(content(annotation(1))).encode())
    assert object_ids(read_annotations(path)) == [1]


@pytest.mark.parametrize("missing", ["area", "iscrowd"])
def test_area_and_iscrowd_are_optional(tmp_path: Path, missing: str) -> None:
    incomplete = annotation(1, area=30.5, bbox=[0, 0, 4, 5], segmentation=[[0, 0, 4, 0, 4, 5, 0, 5]])
    del incomplete[missing]
    (obj,) = read(tmp_path, incomplete).images[0].objects
    assert (obj.area, obj.crowd) == ((20.0, False) if missing == "area" else (30.5, False))


@pytest.mark.parametrize(
    ("problem", "fields"),
    [
        ("unknown_image", {"image_id": 3}),
        ("unknown_category", {"category_id": 4}),
        ("box", {"bbox": [2, 3, 0, 6]}),
        ("box", {"bbox": [2, 3, 6, -6]}),
        ("box", {"bbox": [31, 3, 6, 6]}),
        ("box", {"bbox": [2, -7, 6, 6]}),
        ("no_mask", {"segmentation": None}),
        ("no_mask", {"segmentation": []}),
        ("no_mask", {"segmentation": {}}),
        ("no_mask", {"segmentation": {"size": [20, 30], "counts": [600]}}),
        ("no_mask", {"segmentation": [[2, 3, 8, 9, 2, 3]]}),
        ("no_mask", {"segmentation": [[2.1, 3.1, 2.2, 3.1, 2.2, 3.2], [5.1, 3.1, 5.2, 3.1, 5.2, 3.2]]}),
        ("box", {"bbox": [20, 10, 6, 6]}),
        ("box", {"bbox": [2, 3, 20, 15]}),
        ("box", {"bbox": [2, 3, 20, 15], "segmentation": {"size": [20, 30], "counts": [43, 6, 14, 6, 531]}}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3]]}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3, 8, 9, 2]]}),
        ("damaged_polygon", {"segmentation": [[], [2, 3, 8, 3]]}),
        ("damaged_polygon", {"segmentation": [SQUARE, [2, 3, 8, 3, 8, 1e9]]}),
        ("damaged_polygon", {"segmentation": [{"x": 2, "y": 3}, {"x": 8, "y": 3}, {"x": 8, "y": 9}]}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3, 8, "9"]]}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3, 8, None]]}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3, 8, 1e9]]}),
        ("damaged_polygon", {"segmentation": [[2, 3, 8, 3, 8, 10**400]]}),
        ("damaged_polygon", {"segmentation": [[0, 0, 60, 60] * 50_000]}),
        ("damaged_polygon", {"segmentation": "polygons"}),
        ("damaged_rle", {"segmentation": {"size": [30, 20], "counts": [1, 599]}}),
        ("damaged_rle", {"segmentation": {"counts": [1, 599]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": []}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [1, 600]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [1, 598]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [-1, 601]}}),
        ("no_mask", {"segmentation": {"size": [20, 30], "counts": [1, 0, 599]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [1, -1, 600]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [1, 599.0]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": [1, 2**80]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": ["1", "599"]}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": "1gc"}}),
        ("damaged_rle", {"segmentation": {"size": [20, 30], "counts": "漢字"}}),
    ],
)
def test_an_invalid_annotation_is_dropped_and_counted(tmp_path: Path, problem: str, fields: dict[str, Any]) -> None:
    parsed = read(tmp_path, annotation(1), annotation(44, **fields), annotation(3))
    assert object_ids(parsed) == [1, 3]
    assert parsed.problems.counts() == {problem: 1}
    assert parsed.problems.ids[problem] == (44,)
    (line,) = parsed.problems.lines()
    assert line.startswith("1 ")
    assert line.endswith("(id 44)")


@pytest.mark.parametrize("short", [[], [5], [2, 3, 8, 3], [2, 3, 8, 3, 8]])
def test_only_polygons_with_fewer_than_three_points_are_dropped(tmp_path: Path, short: list[float]) -> None:
    parsed = read(tmp_path, annotation(1), annotation(44, segmentation=[short, SQUARE]))
    assert parsed.problems.counts() == {"dropped_polygons": 1}
    assert parsed.problems.lines() == [
        "1 segmentations repaired: polygons with fewer than 3 points were dropped (id 44)"
    ]
    complete, repaired = parsed.images[0].objects
    assert repaired.segmentation == complete.segmentation
    assert [entry["segmentation"] for entry in parsed.to_coco()["annotations"]] == [[SQUARE], [SQUARE]]


def test_an_annotation_without_a_segmentation_is_dropped(tmp_path: Path) -> None:
    incomplete = annotation(1)
    del incomplete["segmentation"]
    assert read(tmp_path, incomplete, annotation(2)).problems.counts() == {"no_mask": 1}


def test_repeated_ids_are_replaced_and_equal_annotations_dropped(tmp_path: Path) -> None:
    parsed = read(tmp_path, annotation(0, area=5), annotation(0, area=6), annotation(0, area=5), annotation(2, area=7))
    assert [(obj.id, obj.area) for obj in parsed.images[0].objects] == [(0, 5.0), (3, 6.0), (2, 7.0)]
    assert parsed.problems.all_ids() == {"duplicate": [0], "new_id": [0]}


@pytest.mark.parametrize(
    "segmentation",
    [
        SQUARE,
        [[2, 3], [8, 3], [8, 9], [2, 9]],
        [[[2, 3], [8, 3], [8, 9], [2, 9]]],
        [{"size": [20.0, 30.0], "counts": [43, 6, 14, 6, 14, 6, 14, 6, 14, 6, 14, 6, 451]}],
    ],
    ids=["flat polygon", "points", "points in a list", "RLE in a list"],
)
def test_segmentations_with_other_nesting_have_the_same_mask(tmp_path: Path, segmentation: Any) -> None:
    objects = read(tmp_path, annotation(1), annotation(2, segmentation=segmentation)).images[0].objects
    first, second = (decode_mask(obj, 20, 30) for obj in objects)
    assert (first == second).all()


@pytest.mark.parametrize("area", [0, -4.5, None])
def test_an_area_that_is_missing_or_zero_is_that_of_the_mask(tmp_path: Path, area: float | None) -> None:
    assert read(tmp_path, annotation(1, area=area)).images[0].objects[0].area == 36


def test_boxes_as_corners_become_boxes_if_the_masks_show_it(tmp_path: Path) -> None:
    squares = [[[x, y, x + 6, y, x + 6, y + 6, x, y + 6]] for x, y in ((0, 0), (10, 9), (20, 12))]
    rows = [
        annotation(number, bbox=[square[0][0], square[0][1], square[0][4], square[0][5]], segmentation=square)
        for number, square in enumerate(squares)
    ]
    parsed = read(tmp_path, *rows, annotation(9, bbox=[22, 3, 28, 9]))
    assert [obj.box for obj in parsed.images[0].objects] == [(0, 0, 6, 6), (10, 9, 16, 15), (20, 12, 26, 18)]
    assert parsed.problems.all_ids() == {"box": [9], "corners": [0, 1, 2]}


def test_objects_of_a_larger_image_are_clipped_and_counted(tmp_path: Path) -> None:
    inside, outside = [[1, 1, 12, 1, 12, 12, 1, 12]], [[18, 12, 42, 12, 42, 36, 18, 36]]
    rows = [annotation(1, bbox=[1, 1, 11, 11], segmentation=inside)]
    rows.append(annotation(2, bbox=[18, 12, 24, 24], segmentation=outside))
    parsed = read(tmp_path, *rows)
    assert [obj.box for obj in parsed.images[0].objects] == [(1, 1, 12, 12), (18, 12, 30, 20)]
    assert parsed.problems.all_ids() == {"clipped": [2]}


def test_integers_may_be_written_as_floats(tmp_path: Path) -> None:
    rows = {"id": 1.0, "image_id": 1.0, "category_id": 7.0}
    parsed = read(tmp_path, annotation(1, **rows), images=[image(1) | {"height": 20.0, "width": 30.0}])
    assert (parsed.images[0].height, object_ids(parsed)) == (20, [1])
    assert type(parsed.images[0].height) is int


@pytest.mark.parametrize("invalid", [{"bbox": [20, 10, 6, 6]}, {"segmentation": []}, {"category_id": 5}])
def test_a_file_of_mostly_invalid_annotations_is_refused(tmp_path: Path, invalid: dict[str, Any]) -> None:
    assert len(object_ids(read(tmp_path, annotation(1), annotation(2, **invalid)))) == 1
    with pytest.raises(InputError, match=r"got 2 of 3 that cannot be used: 2 annotations dropped.*\(id 2, 3\)"):
        read(tmp_path, annotation(1), annotation(2, **invalid), annotation(3, **invalid))


@pytest.mark.parametrize("is_mask_normalized", [True, False])
def test_coordinates_divided_by_the_image_size_are_refused(tmp_path: Path, is_mask_normalized: bool) -> None:
    polygon = [c / 30 if i % 2 == 0 else c / 20 for i, c in enumerate(SQUARE)] if is_mask_normalized else SQUARE
    rows = [annotation(i, bbox=[2 / 30, 3 / 20, 6 / 30, 6 / 20], segmentation=[polygon]) for i in (1, 2)]
    with pytest.raises(InputError, match="coordinates in pixels, got boxes from 0 to 1; multiply x by the width"):
        read(tmp_path, *rows)


@pytest.mark.parametrize("key", ["category_id", "image_id"])
@pytest.mark.parametrize(("ids", "advice"), [((0, 1, 2, 1), "add 1 to"), ((2, 3, 4), "subtract 1 from")])
def test_ids_that_count_from_0_instead_of_1_are_refused(
    tmp_path: Path, key: str, ids: Sequence[int], advice: str
) -> None:
    counted = {"categories": [{"id": number, "name": f"c{number}"} for number in (1, 2, 3)]}
    counted["images"] = [image(number) for number in (1, 2, 3)]
    rows = [annotation(number, **{"category_id": 1, key: value}) for number, value in enumerate(ids)]
    message = rf"^{key} of the annotations .* among the ids 1 to 3 .*; {advice} each {key}, or remove"
    with pytest.raises(InputError, match=message):
        read_annotations(write(tmp_path / "a.json", content(*rows) | counted))


def test_a_message_shows_at_most_five_ids(tmp_path: Path) -> None:
    valid = [annotation(number) for number in range(30, 50)]
    parsed = read(tmp_path, *valid, *(annotation(number, category_id=1) for number in range(10, 20)))
    assert parsed.problems.lines() == [
        "10 annotations dropped: no category has their category_id (id 10, 11, 12, 13, 14, ...)"
    ]
    assert json.loads(json.dumps(parsed.problems.counts())) == {"unknown_category": 10}


def bytes_writer(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def writer_with_fields(section: str, index: int, **fields: Any) -> Callable[[Path], None]:
    def write_changed(path: Path) -> None:
        instances = content(annotation(1), annotation(2))
        instances[section][index].update(fields)
        write(path, instances)

    return write_changed


def writer_without(section: str, key: str | None = None) -> Callable[[Path], None]:
    def write_incomplete(path: Path) -> None:
        instances = content(annotation(1), annotation(2))
        if key is None:
            del instances[section]
        else:
            del instances[section][1][key]
        write(path, instances)

    return write_incomplete


VALID = json.dumps(content(annotation(1))).encode()


@pytest.mark.parametrize(
    ("write_file", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "it is a folder, not a file"),
        (os.mkfifo, "it is a named pipe, not a file"),
        (bytes_writer(b""), "invalid JSON"),
        (bytes_writer(b"\x89PNG\r\n"), "not UTF-8"),
        (bytes_writer(VALID[: len(VALID) // 2]), "invalid JSON"),
        (bytes_writer(VALID[:-1]), "invalid JSON"),
        (bytes_writer(VALID.replace(b'"area": 36', b'"area": NaN')), "NaN is not a JSON number"),
        (bytes_writer(VALID.replace(b'"area": 36', b'"area": -Infinity')), "-Infinity is not a JSON number"),
        (
            bytes_writer(VALID.replace(b'"area": 36', b'"area": 1e999')),
            r"whose area is not a finite number \(1: id 1\)",
        ),
        (bytes_writer(b'{"images":' + b"[" * 200_000), "invalid JSON"),
        (bytes_writer(b"[]"), "JSON that is not an object with images, annotations and categories"),
        (writer_without("images"), "no list of images"),
        (writer_without("annotations"), "no list of annotations"),
        (writer_without("categories"), "no list of categories"),
        (lambda path: write(path, content() | {"categories": []}), "no categories"),
        (lambda path: write(path, content(images=[])), "no images"),
        (lambda path: write(path, content() | {"images": {"1": image(1)}}), "no list of images"),
        (lambda path: write(path, content() | {"annotations": [annotation(1), 5]}), r"\(1: annotations\[1\]\)"),
        (writer_without("images", "file_name"), r"images without file_name \(1: id 2\)"),
        (writer_without("images", "height"), r"images without height \(1: id 2\)"),
        (writer_without("images", "id"), r"images without id \(1: images\[1\]\)"),
        (writer_without("annotations", "bbox"), r"annotations without bbox \(1: id 2\)"),
        (writer_without("annotations", "category_id"), "annotations without category_id"),
        (writer_without("annotations", "image_id"), "annotations without image_id"),
        (writer_without("categories", "name"), r"categories without name \(1: id 3\)"),
        (writer_with_fields("images", 0, id="1"), r"images whose id is not an integer \(1: images\[0\]\)"),
        (writer_with_fields("images", 0, id=True), "images whose id is not an integer"),
        (writer_with_fields("images", 0, width=0), "images whose width is not an integer of at least 1"),
        (writer_with_fields("images", 0, height=20.5), "images whose height is not an integer of at least 1"),
        (writer_with_fields("images", 0, height=20_000, width=10_000), r"200,000,000 pixels or more \(1: id 1\)"),
        (writer_with_fields("images", 0, file_name=5), "images whose file_name is not a nonempty string"),
        (writer_with_fields("categories", 0, name=None), "categories whose name is not a nonempty string"),
        (
            writer_with_fields("annotations", 0, bbox=[1, 2, 3]),
            r"annotations whose bbox is not four finite numbers \(1: id 1\)",
        ),
        (writer_with_fields("annotations", 0, bbox=[1, 2, 3, "4"]), "bbox is not four finite numbers"),
        (writer_with_fields("annotations", 0, bbox=[1, 2, 3, 10**400]), "bbox is not four finite numbers"),
        (writer_with_fields("annotations", 0, bbox={"x": 1}), "bbox is not four finite numbers"),
        (writer_with_fields("annotations", 0, area="36"), "area is not a finite number"),
        (writer_with_fields("annotations", 0, iscrowd=2), "iscrowd is not 0 or 1"),
        (writer_with_fields("annotations", 0, image_id="1"), "image_id is not an integer"),
        (writer_with_fields("annotations", 0, category_id=7.5), "category_id is not an integer"),
        (writer_with_fields("images", 1, id=1), r"images with the same id \(1: 1\)"),
        (writer_with_fields("images", 1, file_name="1.png"), r"images with the same file_name \(1: 1.png\)"),
        (writer_with_fields("categories", 1, id=7), r"categories with the same id \(1: 7\)"),
    ],
)
def test_rejects_invalid_coco_instances_with_a_one_line_message(
    tmp_path: Path, write_file: Callable[[Path], object], message: str
) -> None:
    write_file(tmp_path / "instances.json")
    with pytest.raises(InputError, match=rf"COCO instances.*{message}") as raised:
        read_annotations(tmp_path / "instances.json")
    assert "instances.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_repeated_problem_is_reported_once_with_the_first_ids(tmp_path: Path) -> None:
    invalid = (annotation(number, bbox=None) for number in range(1, 9))
    with pytest.raises(InputError, match=r"four finite numbers \(8: id 1, id 2, id 3, id 4, id 5, \.\.\.\)"):
        read(tmp_path, *invalid)


def test_to_coco_returns_the_valid_annotations_unchanged(tmp_path: Path) -> None:
    runs = {"size": [20, 30], "counts": [45, 20, 535]}
    rows = [
        annotation(1, area=33.25, bbox=[2, 3, 10, 6], segmentation=[SQUARE, [10.5, 3, 12, 3.25, 12, 9]]),
        annotation(2, iscrowd=1, segmentation=runs, bbox=[2, 0, 2, 20]),
        annotation(3, category_id=100),
        annotation(4, image_id=2),
    ]
    parsed = read(tmp_path, *rows)
    restored = parsed.to_coco()
    assert restored["annotations"] == [rows[0], rows[1], rows[3]]
    assert restored["images"] == content()["images"]
    assert sorted(restored["categories"], key=lambda category: -category["id"]) == content()["categories"]
    assert [entry["id"] for entry in parsed.to_coco([1])["annotations"]] == [4]
    assert [entry["id"] for entry in parsed.to_coco([1])["images"]] == [2]


def test_pycocotools_evaluates_the_instances(tmp_path: Path) -> None:
    runs = {"size": [20, 30], "counts": [45, 20, 535]}
    parsed = read(
        tmp_path,
        annotation(1),
        annotation(2, image_id=2),
        annotation(3, iscrowd=1, segmentation=runs, bbox=[2, 0, 2, 20]),
    )
    with redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = parsed.to_coco()
        truth.createIndex()
        detections = [
            {"image_id": number, "category_id": 7, "score": 0.9, "segmentation": [SQUARE], "bbox": BOX}
            for number in (1, 2)
        ]
        for iou_type in ("bbox", "segm"):
            evaluation = COCOeval(truth, truth.loadRes([dict(detection) for detection in detections]), iou_type)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            assert evaluation.stats[0] == pytest.approx(1)


def test_masks_of_an_image_with_one_row_are_decoded(tmp_path: Path) -> None:
    box = [100, 0, 50, 1]
    polygon = [100, 0, 150, 0, 150, 1, 100, 1]
    parsed = read(tmp_path, annotation(1, bbox=box, segmentation=[polygon]), images=[image(1, height=1, width=5000)])
    mask = decode_mask(parsed.images[0].objects[0], 1, 5000)
    assert mask.shape == (1, 5000)
    assert np.flatnonzero(mask).tolist() == list(range(100, 150))


def test_reading_time_is_linear_in_the_objects_of_an_image(tmp_path: Path) -> None:
    segmentations = ([SQUARE], {"size": [20, 30], "counts": [43, 6, 14, 6, 14, 6, 14, 6, 14, 6, 14, 6, 451]})
    seconds = []
    for count in (2_000, 20_000):
        annotations = [annotation(number, segmentation=segmentations[number % 2]) for number in range(count)]
        durations = []
        for _ in range(3):  # the minimum does not depend on other load
            started = time.process_time()
            parsed = read(tmp_path, *annotations)
            durations.append(time.process_time() - started)
        seconds.append(min(durations))
        assert len(parsed.images[0].objects) == count
    assert seconds[1] < 40 * seconds[0]  # 10 times if linear, 100 times if quadratic
