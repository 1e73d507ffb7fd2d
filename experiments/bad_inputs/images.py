"""Images: damaged, of every mode and format, tiny, huge, with unusual names; and class folders."""

import json
from pathlib import Path

from PIL import Image, PngImagePlugin

from .inputs import Input, accepted, refused
from .makers import class_folder, copied, cut, file, flipped, folder, image, link, noise, png
from .options import TRAIN
from .paths import UNREADABLE

PREDICT = "predict {run} a.png"
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F")
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
FORMATS = {
    "bmp": "RGB",
    "gif": "P",
    "jpeg": "CMYK",
    "jpg": "RGB",
    "pgm": "L",
    "png": "RGBA",
    "ppm": "RGB",
    "tif": "CMYK",
    "tiff": "F",
    "webp": "RGBA",
}


def predictions(count: int, name: str = "predictions.jsonl"):
    """Check that the file has `count` lines of valid JSON, with probabilities that sum to at most 1."""

    def check(here: Path) -> None:
        def refuse(constant: str) -> None:
            raise ValueError(f"{constant} is no JSON")

        lines = (here / name).read_bytes().splitlines()
        assert len(lines) == count, f"{len(lines)} lines"
        for line in lines:
            top = json.loads(line, parse_constant=refuse)["top"]
            assert 0 < sum(entry["probability"] for entry in top) < 1 + 1e-5

    return check


def read(*make, name: str = "", command: str = PREDICT) -> Input:
    """An image that must be classified."""
    return accepted(command, "1 images", *make, check=predictions(1), name=name)


def unreadable(*make, name: str = "", says: str = "", command: str = PREDICT) -> Input:
    """An unreadable image, the only one: the command must name it with the reason, and fail."""
    return refused(
        command, "none of the 1", *make, lines=rf"^skipped 1 unreadable images|^  .*\ba\.\w+.*{says}", name=name
    )


def framed(here: Path, places: object) -> None:
    frames = [noise(number).convert("P") for number in range(3)]
    frames[0].save(here / "a.png", "GIF", save_all=True, append_images=frames[1:], duration=10)


def turned(orientation: int):
    def make(here: Path, places: object) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        noise(0, 12, 20).save(here / "a.jpg", exif=exif)

    return make


def damaged_exif(here: Path, places: object) -> None:
    noise(0).save(here / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40)


def long_text(here: Path, places: object) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * 50_000_000, zip=True)
    noise(0).save(here / "a.png", pnginfo=info)


ONE: list[Input] = [
    unreadable(file("a.png"), name="empty", says="empty"),
    unreadable(file("a.png", "text"), name="text", says="not an image"),
    unreadable(file("a.png", "\0" * 5000), name="zeros", says="not an image"),
    unreadable(file("a.png", png()[:20]), name="cut in its header"),
    unreadable(file("a.png", png()[:8]), name="nothing but a signature"),
    *(
        unreadable(image(f"a.{kind}"), cut(f"a.{kind}", 0.6), name=f"cut {kind}", command=f"predict {{run}} a.{kind}")
        for kind in ("png", "jpg", "bmp", "tif", "webp")
    ),
    unreadable(image("a.png"), flipped("a.png", 0.5), name="a byte changed"),
    unreadable(folder("b"), link("a.png", "b/nowhere.png"), name="a dangling link"),
    *(read(image("a.png", mode, kind="PNG" if mode in PNG_MODES else "TIFF"), name=mode) for mode in MODES),
    *(
        read(image(f"a.{kind}", mode), name=f"{kind}, {mode}", command=f"predict {{run}} a.{kind}")
        for kind, mode in FORMATS.items()
    ),
    read(image("a.png", width=1, height=1), name="1 x 1"),
    read(image("a.png", width=1, height=5000), name="1 x 5000"),
    read(image("a.png", width=5000, height=1), name="5000 x 1"),
    read(image("a.png", "L", 13000, 13000), name="13000 x 13000"),
    read(image("a.png", "1", 12000, 12000), name="12000 x 12000, one bit a pixel"),
    unreadable(image("a.png", "1", 30000, 30000), name="a bomb of 900 million pixels", says="bomb|pixels"),
    unreadable(image("a.png", "1", 60000, 60000), name="a bomb of 3.6 billion pixels", says="bomb|pixels"),
    unreadable(long_text, name="50 MB of text in a PNG"),
    read(framed, name="animated"),
    *(read(turned(number), name=f"EXIF {number}", command="predict {run} a.jpg") for number in (0, 6, 8, 99)),
    read(damaged_exif, name="damaged EXIF", command="predict {run} a.jpg"),
    unreadable(file("a.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>"), command="predict {run} a.svg"),
    unreadable(file("a.png", b"GIF89a" + b"\xff" * 20), name="a GIF of garbage"),
    unreadable(file("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), name="PostScript"),
    accepted("predict {run} a.png b.png", "skipped 1", image("a.png"), file("b.png", "x"), check=predictions(1)),
    accepted("predict {run} a.png a.png ./a.png", "1 images", image("a.png"), check=predictions(1)),
    accepted("predict {run} a.png --top 99", "1 images", image("a.png"), check=predictions(1)),
    *(refused(f"{PREDICT} --top={value}", "top", image("a.png")) for value in ("0", "-1", "x", "")),
    refused(PREDICT, "predictions.jsonl exists", image("a.png"), file("predictions.jsonl", "mine")),
    refused(f"{PREDICT} --out folder", "folder", image("a.png"), folder("folder")),
    refused(f"{PREDICT} --out nowhere/p.jsonl", "nowhere", image("a.png")),
    refused(f"{PREDICT} --model nonsense", "nonsense", image("a.png")),
    refused(f"{PREDICT} --model resnet18", "architecture|classes|fit", image("a.png")),
]

# File and class names, which must be preserved, and escaped when printed.
NAMES: dict[str, str | bytes] = {
    "an escape sequence": "esc\x1b[31mred.png",
    "a line break": "new\nline.png",
    "a carriage return": "new\rline.png",
    "a bell": "bell\x07.png",
    "a control character of C1": "c1\x9b.png",
    "Latin-1": b"caf\xe9.png",
    "Chinese": "漢字.png",
    "quotes": "'a\"b`.png",
    "a percent sign and braces": "100% {x}.png",
    "a leading dash": "-a.png",
    "spaces": "  a b .png",
    "255 bytes": "x" * 251 + ".png",
}

FOLDERS: list[Input] = [
    *(
        accepted(
            "predict {run} d",
            "1 images",
            image(b"d/" + (n if isinstance(n, bytes) else n.encode())),
            check=predictions(1),
            name=f"a file name with {what}",
        )
        for what, n in NAMES.items()
    ),
    *(
        refused(
            "predict {run} d",
            "none of the 1",
            file(b"d/" + (n if isinstance(n, bytes) else n.encode()), "x"),
            lines=UNREADABLE,
            name=f"unreadable, with {what}",
        )
        for what, n in list(NAMES.items())[:6]
    ),
    *(
        accepted(TRAIN.replace("{images}", "d"), "top-1", class_folder(f"d/{name}"), class_folder("d/b"), name=what)
        for what, name in {
            "a class name with an escape sequence": "esc\x1b[31m",
            "a class name with a line break": "new\nline",
            "a class in Chinese": "漢字",
            "a class called train": "train",
            "a class with spaces": " a ",
            "a class with mathematics": "$\\frac$ & <b>",
            "a class of 200 letters": "x" * 200,
        }.items()
    ),
    refused(TRAIN.replace("{images}", "d"), "no images|class", folder("d"), name="no class"),
    refused(TRAIN.replace("{images}", "d"), "2 classes.*a", class_folder("d/a"), name="one class"),
    refused(TRAIN.replace("{images}", "d"), "outside", class_folder("d"), name="loose images"),
    refused(TRAIN.replace("{images}", "d"), "'b' has 1|b", class_folder("d/a"), class_folder("d/b", 1)),
    refused(TRAIN.replace("{images}", "d"), "class", folder("d/a"), folder("d/b"), name="empty classes"),
    accepted(TRAIN.replace("{images}", "d"), "top-1", *map(class_folder, ("d/a", "d/b")), folder("d/c")),
    refused(
        TRAIN.replace("{images}", "d"),
        "none of the|read",
        *(file(f"d/{name}/{number}.png", "x") for name in "ab" for number in range(5)),
        name="no image can be read",
        lines=UNREADABLE,
    ),
    refused(
        f"{TRAIN.replace('{images}', 'd')} --max-unreadable 0",
        "max_unreadable",
        *map(class_folder, ("d/a", "d/b")),
        file("d/a/x.png", "x"),
        leaves=r"new(/.*)?",
        lines=".",
    ),
    refused(
        TRAIN.replace("{images}", "d"),
        "'c'|c",
        *map(class_folder, ("d/train/a", "d/train/b", "d/val/a", "d/val/c")),
        name="an unknown class in validation",
    ),
    refused(
        TRAIN.replace("{images}", "d"),
        "val",
        *map(class_folder, ("d/train/a", "d/train/b")),
        folder("d/val"),
        name="an empty validation",
    ),
    refused(
        TRAIN.replace("{images}", "d"),
        "train",
        *map(class_folder, ("d/train/a", "d/train/b", "d/other")),
        name="train beside what may be a class",
    ),
    accepted(TRAIN.replace("{images}", "d"), "top-1", *map(class_folder, ("d/a", "d/b")), link("d/a/up", "..")),
    refused("train --data file.txt --run new", "file.txt", file("file.txt", "x")),
    refused("train --data images.zip --run new", "images.zip", file("images.zip", "PK")),
    refused("train --data torch/cifar10 --run new", "data_root"),
    refused("train --data torch/nonsense --data-root {here} --run new", "nonsense"),
    refused("train --data tfds/nonsense --run new", "tfds|nonsense"),
    refused("train image_folder --run new", "data must be given|data"),
    refused(
        "shard d new --processes 1",
        "read|images",
        *(file(f"d/{n}/{i}.png", "") for n in "ab" for i in range(5)),
        lines=UNREADABLE,
    ),
    refused("shard d new --processes 1 --unlabeled", "images", folder("d")),
    refused("shard {photo} new", "photo"),
    refused("shard {images}", "OUT"),
    refused("shard {images} new --index", "--index"),
    refused("shard {images} --verify", "shards.json"),
    refused("shard {images} --verify --index", "verify"),
    refused("shard {images} new --data-root x", "data[-_]root"),
    refused("shard {images} new --classes x", "classes"),
    *(
        refused(f"shard {{images}} new --processes 1 --{option}", option.partition("=")[0].replace("-", "[-_ ]"))
        for option in (
            "images-per-shard=0",
            "images-per-shard=x",
            "seed=-1",
            "max-unreadable=-1",
            "validation-share=2",
            "validation-share=nan",
            "processes=0",
        )
    ),
    refused("shard {images} old --processes 1", "old", file("old/mine.txt", "x")),
    refused("shard {images} old --processes 1 --seed 5", "seed|another set", copied("shards", "old")),
    refused("shard {images}/dark old --unlabeled --processes 1", "old|another set", copied("shards", "old")),
    accepted("shard {images} old --processes 1 --images-per-shard 4", "16 images", copied("shards", "old")),
]

IMAGES = [*ONE, *FOLDERS]
