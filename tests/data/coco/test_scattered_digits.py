from pathlib import Path

from lambdanets.data.coco.images import open_annotated
from lambdanets.data.coco.scattered_digits import open_digits, scattered_digits, write_scattered_digits


def test_the_set_of_published_results_has_not_changed() -> None:
    assert [images.fingerprint[:16] for images in open_digits()] == ["73409f2af3ade4b5", "013709a00fa9cd50"]


def test_written_images_are_those_in_memory(tmp_path: Path) -> None:
    write_scattered_digits(tmp_path, 3, 11, seed=1)
    written, in_memory = open_annotated(tmp_path / "val.json", tmp_path / "val"), scattered_digits("val", 11, seed=1)
    assert written.annotations == in_memory.annotations
    assert written.load(5)[0].tobytes() == in_memory.load(5)[0].tobytes()
    assert not written.load(9)[1].objects  # of every tenth
