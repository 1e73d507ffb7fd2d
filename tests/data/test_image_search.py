from pathlib import Path

import pytest
from PIL import Image

from lambdanets.data.datasets import open_splits
from lambdanets.data.image_search import describe_left_out, find_images, image_suffixes
from lambdanets.data.images import FORMATS, read_image
from lambdanets.errors import InputError
from lambdanets.files import _OUTPUTS


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_folder_is_searched_for_visible_images_in_sorted_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.PNG", "a/z.jpg", "a/recipe.json", "scores.json", ".h.png", ".git/x.png", "@eaDir/b.PNG/x.jpg")
    expected = [tmp_path / "a/z.jpg", tmp_path / "b.PNG"]
    assert find_images([str(tmp_path)])[0] == expected
    assert find_images([str(tmp_path / "@eaDir")])[0] == [tmp_path / "@eaDir/b.PNG/x.jpg"]


def test_files_that_are_not_read_are_counted_by_suffix(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.HEIC", "c/d.heic", "c/e.czi", "c/notes", ".DS_Store")
    expected = "left out: 2 .heic, 1 .czi, 1 without a suffix"
    for inputs in ([tmp_path], [tmp_path / "c", tmp_path, f"{tmp_path}/"]):
        assert describe_left_out(find_images([*map(str, inputs)])[1]) == expected
    (tmp_path / "cats/drafts").mkdir(parents=True)
    assert ", 1 empty folder 'cats/drafts', " in describe_left_out(find_images([str(tmp_path)])[1])
    with pytest.raises(InputError, match=r"has none; left out: 1 \.czi, 1 \.heic, 1 without"):
        find_images([str(tmp_path / "c")])


def test_output_folders_of_commands_are_not_data(two_classes: Path) -> None:
    """The tests of the commands assert that their output is recognized."""
    images = find_images([str(two_classes)])[0]
    for number, names in enumerate(_OUTPUTS):
        touch(two_classes / f"out{number}", *names, "a.png", "labels/00.png")
    for inputs in ([str(two_classes)], sorted(map(str, two_classes.iterdir()))):
        assert sorted(find_images(inputs)[0]) == images
    splits = open_splits(str(two_classes))
    assert splits.train.classes == ("dark", "light")
    assert splits.left_out == {f"output folder 'out{number}' of a command": 1 for number in range(len(_OUTPUTS))}


def test_suffixes_of_all_formats_that_are_read_are_found(tmp_path: Path) -> None:
    assert {".jfif", ".jpg", ".png", ".apng", ".tif", ".jp2", ".webp", ".tga"} <= image_suffixes()
    assert not {".eps", ".ps", ".pdf", ".mpg", ".wmf", ".h5", ".txt"} & image_suffixes()
    assert set(FORMATS) <= set(Image.OPEN)
    for suffix in sorted(image_suffixes()):
        if Image.registered_extensions()[suffix] in set(Image.SAVE) - {"MSP", "XBM"}:  # which are black and white
            Image.new("RGB", (32, 32), "red").save(tmp_path / f"x{suffix}")
    found = find_images([str(tmp_path)])[0]
    assert len(found) > 20
    assert all(read_image(path).getpixel((5, 5))[0] > 250 for path in found)


def test_duplicate_inputs_are_listed_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.png", "b.png")
    monkeypatch.chdir(tmp_path)
    assert find_images(["b.png", "./", str(tmp_path / "b.png")])[0] == [Path("b.png"), Path("a.png")]


def test_wildcards_that_a_shell_leaves_are_expanded(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a.png", "c.jpg", "[a].png")
    assert find_images([str(tmp_path / "?.png")])[0] == [tmp_path / "a.png", tmp_path / "b.png"]
    assert find_images([str(tmp_path / "[a].png")])[0] == [tmp_path / "[a].png"]


@pytest.mark.parametrize(
    ("links", "expected"),
    [({"a/loop": ".", "c": "a"}, "a/x b/y c/x"), ({"a/b": "b", "b/a": "a"}, "a/b/y a/x b/a/x b/y")],
)
def test_circular_links_of_folders_are_followed_once(tmp_path: Path, links: dict[str, str], expected: str) -> None:
    touch(tmp_path, "a/x.png", "b/y.png")
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    assert find_images([str(tmp_path)])[0] == [tmp_path / f"{path}.png" for path in expected.split()]
