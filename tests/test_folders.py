"""Output folders that are accepted, resumed or rejected, and the error messages."""

import json

import pytest

from lambdanets.errors import InputError
from lambdanets.work import InUseError, WorkFolder, describe_differences


def read_identity(folder):
    path = folder / "work.json"
    return json.loads(path.read_text()) if path.is_file() else None


def make_work_folder(folder, **identity):
    folder.mkdir()
    (folder / "work.json").write_text(json.dumps(identity))
    return folder


@pytest.mark.parametrize("names", [[], [".lock"], [".a.bin.1.unfinished"], ["empty/"], ["empty/", "empty/.hidden"]])
def test_folder_with_only_hidden_files_counts_as_empty(names, tmp_path):
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    assert not WorkFolder(tmp_path).is_started()


def test_folder_with_the_same_identity_is_cleaned_and_locked(tmp_path):
    folder = WorkFolder(make_work_folder(tmp_path / "out", seed=1, more=2), "work", {"seed": 1}, read_identity)
    (tmp_path / "out/.a.bin.1.unfinished").touch()
    (tmp_path / "out/.spill.unfinished").mkdir()
    with folder.open():
        assert folder.is_started()
        assert {path.name for path in folder.path.iterdir()} == {".lock", "work.json"}
        with pytest.raises(InUseError, match="is in use by process"), folder.open():
            pass


def test_rejects_folder_with_other_identity_and_leaves_it_unchanged(tmp_path):
    folder = WorkFolder(make_work_folder(tmp_path / "out", seed=1), "shards", {"seed": 2}, read_identity)
    with pytest.raises(InputError, match=r"out has shards with seed 1, not 2; choose another folder$"), folder.open():
        pass
    assert [path.name for path in folder.path.iterdir()] == ["work.json"]


def test_rejects_a_file_and_a_folder_with_unknown_content(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"is not empty, it has thesis\.tex; choose another folder, or remove it"):
        WorkFolder(tmp_path, read_identity=read_identity).is_started()
    with pytest.raises(InputError, match=r"thesis\.tex must be a folder, got a file; choose another folder$"):
        WorkFolder(tmp_path / "thesis.tex").is_started()


def test_differences_are_named_with_short_values():
    actual = {"seed": 1, "sha256": "a" * 64, "options": {"top": 3, "size": 8}, "more": 1}
    assert describe_differences(actual, actual) == ""
    assert describe_differences(actual, {"seed": 1, "options": {"top": 3, "size": 8}}) == ""
    expected = {"seed": 2, "sha256": "b" * 64, "options": {"top": 4, "size": 8}, "device": "cpu"}
    assert (
        describe_differences(actual, expected)
        == "seed 1, not 2, other sha256, options (top 3, not 4), device None, not 'cpu'"
    )
    assert (
        describe_differences({"options": {"a": 1, "b": 2}}, {"options": {"a": 1}})
        == "options {'a': 1, 'b': 2}, not {'a': 1}"
    )
