"""Shards: missing or wrong fields of shards.json, tars that differ from it, tars without shards.json, URLs."""

from collections.abc import Callable
from typing import Any

from .inputs import Input, accepted, refused
from .makers import copied, cut, edited, file, flipped, folder, link, pipe, png, removed, tar_bytes
from .options import TRAIN

SHARDS = copied("shards", "s")
VERIFY, STUDENT = "shard s --verify --processes 1", TRAIN.replace("{images}", "s")
LIST = "s/shards.json"


def first(content: Any) -> dict[str, Any]:
    return content["parts"]["train"][0]


def changed(**fields: Any) -> Callable[[Any], Any]:
    """Change fields of the first shard's entry."""
    return lambda content: first(content).update(fields)


def without(*path: str) -> Callable[[Any], Any]:
    def change(content: Any) -> None:
        *outer, last = path
        for name in outer:
            content = content[0] if name == "0" else content[name]
        del content[last]

    return change


# Invalid shards.json: the error, and the change.
WRONG: dict[str, Callable[[Any], Any]] = {
    "no object": lambda content: [],
    "a number": lambda content: 5,
    "no parts": without("parts"),
    "no classes": without("classes"),
    "no training part": without("parts", "train"),
    "an empty training part": lambda content: content["parts"].update(train=[]),
    "an unknown part": lambda content: content["parts"].update(other=[]),
    "parts is a list": lambda content: content.update(parts=[]),
    "a part is a number": lambda content: content["parts"].update(train=5),
    "classes is a number": lambda content: content.update(classes=5),
    "classes are numbers": lambda content: content.update(classes=[1, 2]),
    "classes one text": lambda content: content.update(classes="ab"),
    "no name": without("parts", "train", "0", "name"),
    "no images": without("parts", "train", "0", "images"),
    "no bytes": without("parts", "train", "0", "bytes"),
    "no sha256": without("parts", "train", "0", "sha256"),
    "an entry is a string": lambda content: content["parts"].update(train=["x"]),
    "a name outside": changed(name="../run/weights.tar"),
    "an absolute name": changed(name="/etc/passwd"),
    "a name is a number": changed(name=5),
    "an empty name": changed(name=""),
    "images is a string": changed(images="4"),
    "images negative": changed(images=-1),
    "images is a fraction": changed(images=1.5),
    "bytes is a string": changed(bytes="x"),
    "bytes negative": changed(bytes=-1),
    "sha256 short": changed(sha256="ab"),
    "sha256 no digits": changed(sha256="z" * 64),
    "sha256 is a number": changed(sha256=5),
}
# Readable sets with a shard that `verify` must name.
DIFFERENT: dict[str, tuple[Any, ...]] = {
    "a name that is not there": (edited(LIST, changed(name="nowhere.tar")),),
    "a name with a null byte": (edited(LIST, changed(name="train-00000\0.tar")),),
    "more images than there are": (edited(LIST, changed(images=9)),),
    "more images than memory holds": (edited(LIST, changed(images=10**15)),),
    "other bytes": (edited(LIST, changed(bytes=9)),),
    "another sha256": (edited(LIST, changed(sha256="ab" * 32)),),
    "a shard cut in data": (cut("s/train-00000.tar", 0.5),),
    "a shard cut in a header": (cut("s/train-00000.tar", 100),),
    "an empty shard": (cut("s/train-00000.tar", 0),),
    "a byte changed": (flipped("s/train-00000.tar"),),
    "a shard removed": (removed("s/train-00000.tar"),),
    "a shard is a folder": (removed("s/train-00000.tar"), folder("s/train-00000.tar")),
    "a shard is a dangling link": (removed("s/train-00000.tar"), link("s/train-00000.tar", "nowhere")),
    "a shard is a pipe": (removed("s/train-00000.tar"), pipe("s/train-00000.tar")),
}

SAMPLES = [(f"{n}.{kind}", data) for n in range(4) for kind, data in (("png", png(n)), ("cls", b"%d" % (n % 2)))]
UNLISTED = {
    "no tar": ([file("t/a.txt", "x")], "tar"),
    "an empty tar": ([file("t/a.tar", b"")], "a.tar"),
    "a tar without images": ([file("t/a.tar", tar_bytes([("a.txt", b"x")]))], "a.tar"),
    "a cut tar": ([file("t/a.tar", tar_bytes(SAMPLES)[:2000])], "a.tar"),
    "a tar cut in a header": ([file("t/a.tar", tar_bytes(SAMPLES)[:4196])], "a.tar"),
    "text": ([file("t/a.tar", "x" * 2000)], "a.tar"),
    "a class that is no number": ([file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"dog")]))], "dog"),
    "a class of 5,000 digits": (
        [file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"9" * 5000)]))],
        "class|a.tar",
    ),
    "a class of 2**62": ([file("t/a.tar", tar_bytes([("0.png", png()), ("0.cls", b"%d" % 2**62)]))], "class|a.tar"),
    "some images without a class": ([file("t/a.tar", tar_bytes(SAMPLES[:-1]))], "cls|class"),
    "a list": ([file("t/a.tar", tar_bytes(SAMPLES)), file("t/shards.json", "{}")], "shards.json exists"),
    "a pipe": ([pipe("t/a.tar")], "a.tar"),
}


RETRIES = "retrying|trying again"

SHARD_SETS: list[Input] = [
    *(
        refused(VERIFY, "shards.json|shard", SHARDS, edited(LIST, change), name=f"shards.json: {what}")
        for what, change in WRONG.items()
    ),
    *(
        refused(STUDENT, "shards.json|shard", SHARDS, edited(LIST, change), name=f"shards.json: {what}", lines=".")
        for what, change in list(WRONG.items())[:14]
    ),
    *(
        refused(VERIFY, r"$", SHARDS, file(LIST, content), name=f"shards.json: {what}")
        for what, content in {
            "empty": "",
            "cut": '{"classes": [',
            "not UTF-8": b"\xff\xfe",
            "deep": "[" * 100_000,
        }.items()
    ),
    *(
        refused(VERIFY, r"train-00000|nowhere\.tar", SHARDS, *make, report=True, name=f"verify: {what}")
        for what, make in DIFFERENT.items()
    ),
    *(
        accepted(STUDENT, "skipped [0-9]+ unreadable images", SHARDS, *make, name=f"train on shards: {what}")
        for what, make in DIFFERENT.items()
        if what not in ("more images than memory holds", "a byte changed", "another sha256")
    ),
    refused(
        STUDENT, "class", SHARDS, edited(LIST, lambda c: c.update(classes=["a"])), name="fewer classes than labels"
    ),
    accepted(STUDENT, "top-1", SHARDS, edited(LIST, lambda c: c.update(classes=["a", "a"])), name="two classes alike"),
    refused(STUDENT, "made must be", SHARDS, edited(LIST, lambda c: c.update(made=[])), name="made is a list"),
    *(refused("shard t --index", says, *make, name=f"list shards: {what}") for what, (make, says) in UNLISTED.items()),
    refused("shard t --index --classes c.txt", "names", file("t/a.tar", tar_bytes(SAMPLES)), file("c.txt", "one\n")),
    refused("shard t --index --classes c.txt", "c.txt", file("t/a.tar", tar_bytes(SAMPLES)), file("c.txt", b"\xff\n")),
    refused("shard t --index --classes nowhere", "nowhere", file("t/a.tar", tar_bytes(SAMPLES))),
    refused("shard t --index --seed 5", "seed", file("t/a.tar", tar_bytes(SAMPLES))),
    accepted("shard t --index", "4 images in 1 shards", file("t/a.tar", tar_bytes(SAMPLES))),
    refused(STUDENT, "2 shards|shard", SHARDS, edited(LIST, lambda c: c.update(parts={"train": [first(c)]}))),
]


URLS: list[Input] = [
    *(
        refused(f"shard {{server}}/{kind}/s --verify", f"{kind}|no such file|shards.json", name=f"a server: {kind}")
        for kind in ("404", "403", "410", "text", "html", "list")
    ),
    refused(TRAIN.replace("{images}", "{server}/404/s"), "404|no such file|shards.json"),
    refused("pseudo-label {run} {server}/404/s new", "404|no such file|shards.json"),
    refused("shard nonsense://host/s --verify", "nonsense|rotocol"),
    # These are retried for at most a minute, which must be reported.
    refused("shard {closed}/s --verify", "connect|server", lines=RETRIES, tells=RETRIES, name="no server"),
    refused(
        "shard {server}/500/s --verify", "500", lines=RETRIES, tells=RETRIES, seconds=120, name="a server that fails"
    ),
    refused(
        "shard {server}/cut/s --verify",
        "shards.json",
        lines=RETRIES,
        tells=RETRIES,
        seconds=120,
        name="an answer cut short",
    ),
]
