"""Shards: missing or invalid fields of shards.json, tars that differ from it, tars without shards.json, URLs."""

from collections.abc import Callable
from typing import Any

from .files import copy, edit_json, file, flip_byte, folder, link, pipe, png, remove, tar_bytes, truncate
from .inputs import Input, accepted, rejected
from .options import TRAIN

SHARDS = copy("shards", "s")
VERIFY, TRAIN_ON_SHARDS = "shard s --verify --processes 1", TRAIN.replace("{images}", "s")
SHARDS_JSON = "s/shards.json"


def first_shard(content: Any) -> dict[str, Any]:
    return content["splits"]["train"][0]


def set_fields(**fields: Any) -> Callable[[Any], Any]:
    """Change fields of the first shard's entry."""
    return lambda content: first_shard(content).update(fields)


def delete(*path: str) -> Callable[[Any], Any]:
    """Delete a field, given by the keys that lead to it; "0" is the first entry of a list."""

    def change(content: Any) -> None:
        *outer, last = path
        for name in outer:
            content = content[0] if name == "0" else content[name]
        del content[last]

    return change


# Changes that make shards.json invalid.
INVALID_SHARDS_JSON: dict[str, Callable[[Any], Any]] = {
    "not an object": lambda content: [],
    "a number": lambda content: 5,
    "no splits": delete("splits"),
    "no classes": delete("classes"),
    "no training split": delete("splits", "train"),
    "an empty training split": lambda content: content["splits"].update(train=[]),
    "an unknown split": lambda content: content["splits"].update(other=[]),
    "splits is a list": lambda content: content.update(splits=[]),
    "a split is a number": lambda content: content["splits"].update(train=5),
    "classes is a number": lambda content: content.update(classes=5),
    "classes are numbers": lambda content: content.update(classes=[1, 2]),
    "classes is a string": lambda content: content.update(classes="ab"),
    "no name": delete("splits", "train", "0", "name"),
    "no images": delete("splits", "train", "0", "images"),
    "no bytes": delete("splits", "train", "0", "bytes"),
    "no sha256": delete("splits", "train", "0", "sha256"),
    "an entry is a string": lambda content: content["splits"].update(train=["x"]),
    "a name outside the folder": set_fields(name="../run/weights.tar"),
    "an absolute name": set_fields(name="/etc/passwd"),
    "a name is a number": set_fields(name=5),
    "an empty name": set_fields(name=""),
    "images is a string": set_fields(images="4"),
    "images is negative": set_fields(images=-1),
    "images is a fraction": set_fields(images=1.5),
    "bytes is a string": set_fields(bytes="x"),
    "bytes is negative": set_fields(bytes=-1),
    "sha256 too short": set_fields(sha256="ab"),
    "sha256 without hexadecimal digits": set_fields(sha256="z" * 64),
    "sha256 is a number": set_fields(sha256=5),
}
# Changes that `shard --verify` must report with the name of the shard.
DIFFERENT_SHARDS: dict[str, tuple[Any, ...]] = {
    "a shard that does not exist": (edit_json(SHARDS_JSON, set_fields(name="nowhere.tar")),),
    "a name with a null byte": (edit_json(SHARDS_JSON, set_fields(name="train-00000\0.tar")),),
    "too many images": (edit_json(SHARDS_JSON, set_fields(images=9)),),
    "more images than fit into memory": (edit_json(SHARDS_JSON, set_fields(images=10**15)),),
    "a different size in bytes": (edit_json(SHARDS_JSON, set_fields(bytes=9)),),
    "a different sha256": (edit_json(SHARDS_JSON, set_fields(sha256="ab" * 32)),),
    "a shard truncated in its data": (truncate("s/train-00000.tar", 0.5),),
    "a shard truncated in a header": (truncate("s/train-00000.tar", 100),),
    "an empty shard": (truncate("s/train-00000.tar", 0),),
    "one byte changed": (flip_byte("s/train-00000.tar"),),
    "a missing shard": (remove("s/train-00000.tar"),),
    "a shard is a folder": (remove("s/train-00000.tar"), folder("s/train-00000.tar")),
    "a shard is a dangling link": (remove("s/train-00000.tar"), link("s/train-00000.tar", "nowhere")),
    "a shard is a pipe": (remove("s/train-00000.tar"), pipe("s/train-00000.tar")),
}

SAMPLES = [(f"{n}.{kind}", data) for n in range(4) for kind, data in (("png", png(n)), ("cls", b"%d" % (n % 2)))]
# Folders that `shard --index` must reject: the setup, and a pattern of the error message.
NOT_INDEXABLE = {
    "not a tar": ([file("t/a.txt", "x")], "tar"),
    "an empty tar": ([file("t/a.tar", b"")], "a.tar"),
    "a tar without images": ([file("t/a.tar", tar_bytes([("a.txt", b"x")]))], "a.tar"),
    "a truncated tar": ([file("t/a.tar", tar_bytes(SAMPLES)[:2000])], "a.tar"),
    "a tar truncated in a header": ([file("t/a.tar", tar_bytes(SAMPLES)[:4196])], "a.tar"),
    "text": ([file("t/a.tar", "x" * 2000)], "a.tar"),
    "a class that is not a number": ([file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"dog")]))], "dog"),
    "a class of 5,000 digits": (
        [file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"9" * 5000)]))],
        "class|a.tar",
    ),
    "a class of 2**62": ([file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"%d" % 2**62)]))], "class|a.tar"),
    "some images without a class": ([file("t/a.tar", tar_bytes(SAMPLES[:-1]))], "cls|class"),
    "an existing shards.json": (
        [file("t/a.tar", tar_bytes(SAMPLES)), file("t/shards.json", "{}")],
        "shards.json exists",
    ),
    "a pipe": ([pipe("t/a.tar")], "a.tar"),
}


RETRY_MESSAGE = "retrying|trying again"

SHARD_SETS: list[Input] = [
    *(
        rejected(VERIFY, "shards.json|shard", SHARDS, edit_json(SHARDS_JSON, change), name=f"shards.json: {case}")
        for case, change in INVALID_SHARDS_JSON.items()
    ),
    *(
        rejected(
            TRAIN_ON_SHARDS,
            "shards.json|shard",
            SHARDS,
            edit_json(SHARDS_JSON, change),
            name=f"shards.json: {case}",
            allowed_lines=".",
        )
        for case, change in list(INVALID_SHARDS_JSON.items())[:14]
    ),
    *(
        rejected(VERIFY, r"$", SHARDS, file(SHARDS_JSON, content), name=f"shards.json: {case}")
        for case, content in {
            "empty": "",
            "truncated": '{"classes": [',
            "not UTF-8": b"\xff\xfe",
            "deeply nested": "[" * 100_000,
        }.items()
    ),
    *(
        rejected(VERIFY, r"train-00000|nowhere\.tar", SHARDS, *setup, prints_report=True, name=f"verify: {case}")
        for case, setup in DIFFERENT_SHARDS.items()
    ),
    *(
        accepted(TRAIN_ON_SHARDS, "skipped [0-9]+ unreadable images", SHARDS, *setup, name=f"train on shards: {case}")
        for case, setup in DIFFERENT_SHARDS.items()
        if case not in ("more images than fit into memory", "one byte changed", "a different sha256")
    ),
    rejected(
        TRAIN_ON_SHARDS,
        "class",
        SHARDS,
        edit_json(SHARDS_JSON, lambda c: c.update(classes=["a"])),
        name="fewer classes than labels",
    ),
    accepted(
        TRAIN_ON_SHARDS,
        "top-1",
        SHARDS,
        edit_json(SHARDS_JSON, lambda c: c.update(classes=["a", "a"])),
        name="two classes with the same name",
    ),
    rejected(
        TRAIN_ON_SHARDS,
        "metadata must be",
        SHARDS,
        edit_json(SHARDS_JSON, lambda c: c.update(metadata=[])),
        name="metadata is a list",
    ),
    *(
        rejected("shard t --index", output, *setup, name=f"index: {case}")
        for case, (setup, output) in NOT_INDEXABLE.items()
    ),
    rejected("shard t --index --classes c.txt", "names", file("t/a.tar", tar_bytes(SAMPLES)), file("c.txt", "one\n")),
    rejected("shard t --index --classes c.txt", "c.txt", file("t/a.tar", tar_bytes(SAMPLES)), file("c.txt", b"\xff\n")),
    rejected("shard t --index --classes nowhere", "nowhere", file("t/a.tar", tar_bytes(SAMPLES))),
    rejected("shard t --index --seed 5", "seed", file("t/a.tar", tar_bytes(SAMPLES))),
    accepted("shard t --index", "4 images in 1 shards", file("t/a.tar", tar_bytes(SAMPLES))),
    rejected(
        TRAIN_ON_SHARDS,
        "2 shards|shard",
        SHARDS,
        edit_json(SHARDS_JSON, lambda c: c.update(splits={"train": [first_shard(c)]})),
    ),
]


URLS: list[Input] = [
    *(
        rejected(f"shard {{server}}/{kind}/s --verify", f"{kind}|no such file|shards.json", name=f"a server: {kind}")
        for kind in ("404", "403", "410", "text", "html", "list")
    ),
    rejected(TRAIN.replace("{images}", "{server}/404/s"), "404|no such file|shards.json"),
    rejected("pseudo-label {run} {server}/404/s new", "404|no such file|shards.json"),
    rejected("shard nonsense://host/s --verify", "nonsense|rotocol"),
    # These requests are retried for at most a minute, which must be reported.
    rejected(
        "shard {closed}/s --verify",
        "connect|server",
        allowed_lines=RETRY_MESSAGE,
        required_line=RETRY_MESSAGE,
        name="no server",
    ),
    rejected(
        "shard {server}/500/s --verify",
        "500",
        allowed_lines=RETRY_MESSAGE,
        required_line=RETRY_MESSAGE,
        time_limit=120,
        name="a server with status 500",
    ),
    rejected(
        "shard {server}/truncated/s --verify",
        "shards.json",
        allowed_lines=RETRY_MESSAGE,
        required_line=RETRY_MESSAGE,
        time_limit=120,
        name="a truncated response",
    ),
]
