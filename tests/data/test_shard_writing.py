import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lambdanets.cli import main
from lambdanets.data.datasets import open_splits
from lambdanets.data.image_search import list_images
from lambdanets.data.shards import writing
from lambdanets.data.shards.images import UNLABELED, ShardedImages, open_shards
from lambdanets.data.shards.plan import unique_keys
from lambdanets.data.shards.tar_samples import split_name
from lambdanets.data.shards.writing import write_shards
from lambdanets.errors import InputError
from lambdanets.locks import locked_folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def files_by_key(images: ShardedImages) -> dict[str, bytes]:
    return {images.key(index): images.file(index)[0] for index in range(len(images))}


def test_image_files_are_copied_byte_for_byte(two_classes: Path, tmp_path: Path) -> None:
    Image.open(two_classes / "dark/00.png").save(two_classes / "dark/photo.JPG", quality=40)
    report = write_shards(open_splits(str(two_classes)), tmp_path / "out", images_per_shard=4)
    splits, classes = open_shards(str(tmp_path / "out"))
    files = files_by_key(splits["train"]) | files_by_key(splits["validation"])
    assert files == {f"{path.parent.name}/{path.stem}": path.read_bytes() for path in list_images(two_classes).paths}
    assert classes == ("dark", "light")
    assert (report.num_images, report.unreadable) == (21, [])
    assert report.num_shards == len(list((tmp_path / "out").glob("*.tar"))) == 4 + 2
    assert report.num_bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))


def test_images_in_memory_are_written_as_png(tmp_path: Path) -> None:
    splits = open_splits("digits")
    write_shards(splits, tmp_path / "out", images_per_shard=500, check_images=False)
    written = open_splits(str(tmp_path / "out"))
    assert (len(written.train), len(written.validation)) == (len(splits.train), len(splits.validation))
    train = written.train
    assert isinstance(train, ShardedImages)
    originals = {splits.train.name(index): index for index in range(len(splits.train))}
    for index in range(0, len(train), 100):
        image, label = splits.train.load(originals[f"digits/{train.key(index)}"])
        assert train.load(index)[0].tobytes() == image.tobytes()
        assert train.load(index)[1] == label
        assert train.file(index)[1] == ".png"


def test_shards_have_images_of_all_classes_and_similar_sizes(tmp_path: Path) -> None:
    write_shards(open_splits("digits"), tmp_path / "out", images_per_shard=500, check_images=False)
    train = open_shards(str(tmp_path / "out"))[0]["train"]
    assert train.shard_sizes == [480, 479, 478] or max(train.shard_sizes) - min(train.shard_sizes) <= 1
    labels_of_first_shard = train.labels[: train.shard_sizes[0]]
    assert set(labels_of_first_shard.tolist()) == set(range(10))


def test_a_list_of_images_is_written_without_classes(two_classes: Path, tmp_path: Path) -> None:
    write_shards(list_images(two_classes).paths, tmp_path / "out", images_per_shard=7)
    splits, classes = open_shards(str(tmp_path / "out"))
    assert (list(splits), classes) == (["train"], ())
    assert len(files_by_key(splits["train"])) == 20
    assert splits["train"].load(0)[1] == UNLABELED
    assert splits["train"].labels.tolist() == [UNLABELED] * 20
    with pytest.raises(InputError, match="images without classes"):
        open_splits(str(tmp_path / "out"))


def test_shards_can_be_written_from_shards(two_classes: Path, tmp_path: Path) -> None:
    write_shards(open_splits(str(two_classes)), tmp_path / "first", images_per_shard=3)
    write_shards(open_splits(str(tmp_path / "first")), tmp_path / "second", images_per_shard=8)
    first, second = (open_shards(str(tmp_path / name))[0]["train"] for name in ("first", "second"))
    assert sorted(files_by_key(first).values()) == sorted(files_by_key(second).values())


def test_written_bytes_do_not_depend_on_the_number_of_processes(two_classes: Path, tmp_path: Path) -> None:
    splits = open_splits(str(two_classes))
    for processes in (1, 2):
        write_shards(splits, tmp_path / str(processes), images_per_shard=3, processes=processes)
    assert read_files(tmp_path / "1") == read_files(tmp_path / "2")


def test_another_seed_gives_another_order(two_classes: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_shards(open_splits(str(two_classes)), tmp_path / str(seed), images_per_shard=3, seed=seed)
    assert read_files(tmp_path / "0") != read_files(tmp_path / "1")


@pytest.mark.parametrize("processes", [1, 2])
def test_failed_writing_resumes_without_rewriting_finished_shards(
    two_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    splits = open_splits(str(two_classes))
    write_shards(splits, tmp_path / "uninterrupted", images_per_shard=3)
    write = writing.write_tar_samples

    def fail(path: Path, samples: object) -> tuple[int, int, str]:
        if path.name == "train-00003.tar":
            raise OSError("the disk is gone")
        return write(path, samples)

    monkeypatch.setattr(writing, "write_tar_samples", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        write_shards(splits, tmp_path / "out", images_per_shard=3, processes=processes)
    assert not (tmp_path / "out/shards.json").exists()
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert 3 <= len(finished) < 8

    monkeypatch.setattr(writing, "write_tar_samples", write)
    write_shards(splits, tmp_path / "out", images_per_shard=3)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in finished} == finished
    assert read_files(tmp_path / "out") == read_files(tmp_path / "uninterrupted")


def test_killed_writing_leaves_no_workers_and_resumes_bit_identically(two_classes: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from lambdanets.data.shards import writing\n"
        "from lambdanets.data.datasets import open_splits\n"
        "write = writing.write_tar_samples\n"
        "def wait_and_write(path, samples):\n"
        "    if path.name > 'train-00001.tar': time.sleep(600)\n"
        "    return write(path, samples)\n"
        "writing.write_tar_samples = wait_and_write\n"
        "writing.write_shards(open_splits(sys.argv[1]), Path(sys.argv[2]), images_per_shard=2, processes=2)\n"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", script, str(two_classes), str(out)], start_new_session=True)
    second_entry = out / "unfinished/train-00001.tar.json"
    deadline = time.monotonic() + 120
    while not second_entry.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert second_entry.exists()
    deadline = time.monotonic() + 60
    while _process_group_exists(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _process_group_exists(process.pid)

    (out / ".train-00005.tar.17.unfinished").write_bytes(b"incomplete")
    modified = (out / "train-00000.tar").stat().st_mtime_ns
    splits = open_splits(str(two_classes))
    write_shards(splits, out, images_per_shard=2)
    write_shards(splits, tmp_path / "uninterrupted", images_per_shard=2)
    assert (out / "train-00000.tar").stat().st_mtime_ns == modified
    assert read_files(out) == read_files(tmp_path / "uninterrupted")


def test_killed_worker_process_is_reported(two_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main_process = os.getpid()

    def kill_worker(path: Path, samples: object) -> None:
        assert os.getpid() != main_process
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_tar_samples", kill_worker)
        with pytest.raises(InputError, match="was killed, perhaps out of memory; run the same command"):
            write_shards(list_images(two_classes).paths, tmp_path / "out", images_per_shard=3, processes=2)
    assert write_shards(list_images(two_classes).paths, tmp_path / "out", images_per_shard=3).num_images == 20


def test_rejects_a_folder_that_another_process_writes(two_classes: Path, tmp_path: Path) -> None:
    with locked_folder(tmp_path / "out"), pytest.raises(InputError, match="out is in use by process"):
        write_shards(list_images(two_classes).paths, tmp_path / "out")


def _process_group_exists(group: int) -> bool:
    states = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            states.append(fields[0])
    return any(state != "Z" for state in states)


def test_finished_shards_are_not_written_again(two_classes: Path, tmp_path: Path) -> None:
    splits = open_splits(str(two_classes))
    first = write_shards(splits, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    second = write_shards(splits, tmp_path / "out")
    assert dataclasses.replace(second, seconds=first.seconds) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times


def test_leftovers_of_a_process_killed_after_shards_json_are_removed(two_classes: Path, tmp_path: Path) -> None:
    splits = open_splits(str(two_classes))
    write_shards(splits, tmp_path / "uninterrupted", images_per_shard=5)
    shutil.copytree(tmp_path / "uninterrupted", tmp_path / "out")
    (tmp_path / "out/unfinished").mkdir()
    (tmp_path / "out/unfinished/train-00000.tar.json").write_text("{}")
    write_shards(splits, tmp_path / "out", images_per_shard=5)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (tmp_path / "uninterrupted").iterdir()
    )


@pytest.mark.parametrize("finished", [True, False])
def test_rejects_a_folder_with_shards_of_different_options_or_images(
    two_classes: Path, tmp_path: Path, finished: bool
) -> None:
    splits, out = open_splits(str(two_classes)), tmp_path / "out"
    if finished:
        write_shards(splits, out)
    else:
        shutil.copytree(two_classes / "dark", two_classes / "gray")
        (two_classes / "dark/05.png").write_bytes(b"damaged")
        with pytest.raises(InputError, match="max_unreadable"):
            write_shards(splits, out, max_unreadable=0)
    with pytest.raises(InputError, match=r"has shards with seed 0, not 1; choose another folder"):
        write_shards(splits, out, seed=1)
    with pytest.raises(InputError, match=r"has shards with images_per_shard 10000, not 5"):
        write_shards(splits, out, images_per_shard=5)
    with pytest.raises(InputError, match="has shards with other images, names or classes"):
        write_shards(open_splits(str(two_classes), seed=5), out)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3"])
def test_rejects_a_damaged_plan(two_classes: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out/unfinished").mkdir(parents=True)
    (tmp_path / "out/unfinished/plan.json").write_bytes(content)
    with pytest.raises(InputError, match=r"plan\.json is damaged: .*; remove \S*out, or choose another folder"):
        write_shards(list_images(two_classes).paths, tmp_path / "out")


def test_rejects_a_folder_with_unknown_content(two_classes: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file must be a folder, got a file"):
        write_shards(list_images(two_classes).paths, tmp_path / "file")
    with pytest.raises(InputError, match="is not empty, it has dark; choose another folder"):
        write_shards(list_images(two_classes).paths, two_classes)
    (tmp_path / "other").mkdir()
    shard = {"name": "a.tar", "images": 1, "bytes": 1, "sha256": "00" * 32}
    (tmp_path / "other/shards.json").write_text(json.dumps({"classes": [], "splits": {"train": [shard]}}))
    with pytest.raises(InputError, match=r"is not empty, it has shards\.json"):
        write_shards(list_images(two_classes).paths, tmp_path / "other")


def test_unreadable_images_are_skipped_and_listed(two_classes: Path, tmp_path: Path) -> None:
    splits = open_splits(str(two_classes))
    (two_classes / "dark/03.png").write_bytes(b"no image")
    (two_classes / "light/04.png").write_bytes((two_classes / "light/05.png").read_bytes()[:50])
    (two_classes / "light/06.png").unlink()
    report = write_shards(splits, tmp_path / "out", images_per_shard=4, processes=2)
    assert report.num_images == 17
    assert report.unreadable[0] == f"{two_classes}/dark/03.png: it is not an image of a known format"
    assert [message.partition(":")[0][-12:] for message in report.unreadable[1:]] == ["light/04.png", "light/06.png"]
    assert report.unreadable[2].endswith(": there is no such file")
    written, _ = open_shards(str(tmp_path / "out"))
    assert sum(len(images) for images in written.values()) == 17


def test_writing_stops_after_more_than_max_unreadable_images(two_classes: Path, tmp_path: Path) -> None:
    splits = open_splits(str(two_classes))
    for number in range(4):
        (two_classes / f"dark/0{number}.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"images cannot be read, more than max_unreadable \(2\): .*(the file|known)"):
        write_shards(splits, tmp_path / "out", images_per_shard=4, max_unreadable=2)
    assert write_shards(splits, tmp_path / "out", images_per_shard=4, max_unreadable=4).num_images == 16


@pytest.mark.parametrize("check_images", [True, False])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_rejects_a_split_without_readable_images(
    two_classes: Path, tmp_path: Path, split: str, check_images: bool
) -> None:
    splits = open_splits(str(two_classes))
    images = {"train": splits.train, "validation": splits.validation}[split]
    for index in range(len(images)):
        path = Path(images.name(index))
        path.write_bytes(b"") if check_images else path.unlink()
    count = {"train": "16 training", "validation": "4 validation"}[split]
    with pytest.raises(InputError, match=rf"none of the {count} images can be read; the first: \S*png: the"):
        write_shards(splits, tmp_path / "out", check_images=check_images)
    assert not (tmp_path / "out").exists()


def test_shard_command_rejects_a_set_without_readable_images(
    two_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in list_images(two_classes).paths:
        path.write_bytes(b"")
    for options in ([], ["--unlabeled"]):
        assert main(["shard", str(two_classes), str(tmp_path / "out"), *options]) == 2
        assert "training images can be read; the first: " in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_repaired_images_are_written_on_resume(two_classes: Path, tmp_path: Path) -> None:
    splits, damaged = open_splits(str(two_classes)), two_classes / "dark/05.png"
    content = damaged.read_bytes()
    damaged.write_bytes(b"")
    with pytest.raises(InputError, match="more than max_unreadable"):
        write_shards(splits, tmp_path / "out", images_per_shard=4, max_unreadable=0)
    damaged.write_bytes(content)
    report = write_shards(splits, tmp_path / "out", images_per_shard=4, max_unreadable=0)
    assert (report.num_images, report.unreadable) == (20, [])


def test_unchecked_images_are_copied_even_if_damaged(two_classes: Path, tmp_path: Path) -> None:
    (two_classes / "dark/03.png").write_bytes(b"no image")
    assert write_shards(open_splits(str(two_classes)), tmp_path / "out", check_images=False).num_images == 20


def test_rejects_a_shard_that_differs_after_writing(
    two_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lambdanets.data.shards.tar_samples._summarize", lambda file: [])
    with pytest.raises(InputError, match="differs after it was written"):
        write_shards(list_images(two_classes).paths, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("option", ["images_per_shard", "processes", "max_unreadable"])
def test_rejects_options_out_of_range(two_classes: Path, tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match=rf"{option} must be at least \d, got -1"):
        write_shards(list_images(two_classes).paths, tmp_path / "out", **{option: -1})
    with pytest.raises(InputError, match="source must have images, got none"):
        write_shards([], tmp_path / "out")


def test_keys_are_paths_relative_to_the_common_folder() -> None:
    assert unique_keys(["/set/a/1.png", "/set/b/2.jpeg"]) == ["a/1", "b/2"]
    assert unique_keys(["digits/1", "digits/0"]) == ["1", "0"]
    assert unique_keys(["/set/1.png"]) == ["1"]
    assert unique_keys(["1.png", "2.png"]) == ["1", "2"]
    # the names of tar members may begin with "..", but keys of shards must not
    assert unique_keys(["a.tar/../../x/1.png", "a.tar/_/_/x/1.png"]) == ["_/_/x/1", "_/_/x/1-2"]


def test_keys_of_similar_names_are_unique() -> None:
    names = ["s/a.b.png", "s/a_b.png", "s/a.b.jpg", "s/c.1/x.png", "s/c_1/x.png", "s/a_b-2.png", "s/v1.2"]
    keys = unique_keys(names)
    assert keys == ["a_b", "a_b-2", "a_b-3", "c.1/x", "c_1/x", "a_b-2-2", "v1_2"]
    assert [split_name(f"{key}.png") for key in keys] == [(key, "png") for key in keys]


def test_keys_have_the_characters_of_names_in_any_script(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(png, "PNG")
    folder = tmp_path / "images"
    folder.mkdir()
    names = ["λάμδα.v2.png", "図.png", "é" * 100 + ".png", os.fsdecode(b"caf\xe9.png"), "with space.png"]
    for name in names:
        (folder / name).write_bytes(png.getvalue())
    write_shards(list_images(folder).paths, tmp_path / "out")
    keys = set(files_by_key(open_shards(str(tmp_path / "out"))[0]["train"]))
    assert keys == {"λάμδα_v2", "図", "é" * 100, "caf\\udce9", "with space"}
