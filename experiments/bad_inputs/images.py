"""Images: damaged, in all modes and formats, tiny, huge, with unusual names; and class folders."""

import json
from pathlib import Path

from PIL import Image, PngImagePlugin

from .files import class_folder, copy, file, flip_byte, folder, image, link, noise, png, truncate
from .inputs import Input, accepted, rejected
from .options import TRAIN
from .paths import SKIPPED_LINES

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


def check_predictions(count: int, name: str = "predictions.jsonl"):
    """Returns a check that the file has `count` lines of valid JSON whose probabilities sum to at most 1."""

    def check(cwd: Path) -> None:
        def reject(constant: str) -> None:
            raise ValueError(f"{constant} is not valid JSON")

        lines = (cwd / name).read_bytes().splitlines()
        assert len(lines) == count, f"{len(lines)} lines"
        for line in lines:
            top = json.loads(line, parse_constant=reject)["top"]
            assert 0 < sum(entry["probability"] for entry in top) < 1 + 1e-5

    return check


def readable(*setup, name: str = "", command: str = PREDICT) -> Input:
    """An image that `predict` must classify."""
    return accepted(command, "1 images", *setup, check=check_predictions(1), name=name)


def unreadable(*setup, name: str = "", reason: str = "", command: str = PREDICT) -> Input:
    """A single unreadable image: `predict` must print its name and the reason, and fail."""
    return rejected(
        command,
        "none of the 1",
        *setup,
        allowed_lines=rf"^skipped 1 unreadable images|^  .*\ba\.\w+.*{reason}",
        name=name,
    )


def animated_gif(cwd: Path, fixtures: object) -> None:
    frames = [noise(number).convert("P") for number in range(3)]
    frames[0].save(cwd / "a.png", "GIF", save_all=True, append_images=frames[1:], duration=10)


def rotated_by_exif(orientation: int):
    def setup(cwd: Path, fixtures: object) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        noise(0, 12, 20).save(cwd / "a.jpg", exif=exif)

    return setup


def damaged_exif(cwd: Path, fixtures: object) -> None:
    noise(0).save(cwd / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40)


def long_text(cwd: Path, fixtures: object) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * 50_000_000, zip=True)
    noise(0).save(cwd / "a.png", pnginfo=info)


SINGLE_IMAGES: list[Input] = [
    unreadable(file("a.png"), name="empty", reason="empty"),
    unreadable(file("a.png", "text"), name="text", reason="not an image"),
    unreadable(file("a.png", "\0" * 5000), name="zeros", reason="not an image"),
    unreadable(file("a.png", png()[:20]), name="truncated in its header"),
    unreadable(file("a.png", png()[:8]), name="only the PNG signature"),
    *(
        unreadable(
            image(f"a.{suffix}"),
            truncate(f"a.{suffix}", 0.6),
            name=f"truncated {suffix}",
            command=f"predict {{run}} a.{suffix}",
        )
        for suffix in ("png", "jpg", "bmp", "tif", "webp")
    ),
    unreadable(image("a.png"), flip_byte("a.png", 0.5), name="one byte changed"),
    unreadable(folder("b"), link("a.png", "b/nowhere.png"), name="a dangling link"),
    *(readable(image("a.png", mode, file_format="PNG" if mode in PNG_MODES else "TIFF"), name=mode) for mode in MODES),
    *(
        readable(image(f"a.{suffix}", mode), name=f"{suffix}, {mode}", command=f"predict {{run}} a.{suffix}")
        for suffix, mode in FORMATS.items()
    ),
    readable(image("a.png", width=1, height=1), name="1 x 1"),
    readable(image("a.png", width=1, height=5000), name="1 x 5000"),
    readable(image("a.png", width=5000, height=1), name="5000 x 1"),
    readable(image("a.png", "L", 13000, 13000), name="13000 x 13000"),
    readable(image("a.png", "1", 12000, 12000), name="12000 x 12000, one bit per pixel"),
    unreadable(image("a.png", "1", 30000, 30000), name="900 million pixels", reason="bomb|pixels"),
    unreadable(image("a.png", "1", 60000, 60000), name="3.6 billion pixels", reason="bomb|pixels"),
    unreadable(long_text, name="50 MB of text in a PNG"),
    readable(animated_gif, name="animated"),
    *(
        readable(rotated_by_exif(number), name=f"EXIF {number}", command="predict {run} a.jpg")
        for number in (0, 6, 8, 99)
    ),
    readable(damaged_exif, name="damaged EXIF", command="predict {run} a.jpg"),
    unreadable(file("a.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>"), command="predict {run} a.svg"),
    unreadable(file("a.png", b"GIF89a" + b"\xff" * 20), name="a GIF of garbage"),
    unreadable(file("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), name="PostScript"),
    accepted("predict {run} a.png b.png", "skipped 1", image("a.png"), file("b.png", "x"), check=check_predictions(1)),
    accepted("predict {run} a.png a.png ./a.png", "1 images", image("a.png"), check=check_predictions(1)),
    accepted("predict {run} a.png --top 99", "1 images", image("a.png"), check=check_predictions(1)),
    *(rejected(f"{PREDICT} --top={value}", "top", image("a.png")) for value in ("0", "-1", "x", "")),
    rejected(PREDICT, "predictions.jsonl exists", image("a.png"), file("predictions.jsonl", "mine")),
    rejected(f"{PREDICT} --out folder", "folder", image("a.png"), folder("folder")),
    rejected(f"{PREDICT} --out nowhere/p.jsonl", "nowhere", image("a.png")),
]

# File names that must be kept in the predictions, and escaped when printed.
FILE_NAMES: dict[str, str | bytes] = {
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
            check=check_predictions(1),
            name=f"a file name with {case}",
        )
        for case, n in FILE_NAMES.items()
    ),
    *(
        rejected(
            "predict {run} d",
            "none of the 1",
            file(b"d/" + (n if isinstance(n, bytes) else n.encode()), "x"),
            allowed_lines=SKIPPED_LINES,
            name=f"unreadable, with {case}",
        )
        for case, n in list(FILE_NAMES.items())[:6]
    ),
    *(
        accepted(TRAIN.replace("{images}", "d"), "top-1", class_folder(f"d/{name}"), class_folder("d/b"), name=case)
        for case, name in {
            "a class name with an escape sequence": "esc\x1b[31m",
            "a class name with a line break": "new\nline",
            "a Chinese class name": "漢字",
            "a class named train": "train",
            "a class name with spaces": " a ",
            "a class name with LaTeX and HTML": "$\\frac$ & <b>",
            "a class name of 200 letters": "x" * 200,
        }.items()
    ),
    rejected(TRAIN.replace("{images}", "d"), "no images|class", folder("d"), name="no classes"),
    rejected(TRAIN.replace("{images}", "d"), "2 classes.*a", class_folder("d/a"), name="one class"),
    rejected(TRAIN.replace("{images}", "d"), "outside", class_folder("d"), name="images outside class folders"),
    rejected(TRAIN.replace("{images}", "d"), "'b' has 1|b", class_folder("d/a"), class_folder("d/b", 1)),
    rejected(TRAIN.replace("{images}", "d"), "class", folder("d/a"), folder("d/b"), name="empty classes"),
    accepted(TRAIN.replace("{images}", "d"), "top-1", *map(class_folder, ("d/a", "d/b")), folder("d/c")),
    rejected(
        TRAIN.replace("{images}", "d"),
        "none of the|read",
        *(file(f"d/{name}/{number}.png", "x") for name in "ab" for number in range(5)),
        name="no readable image",
        allowed_lines=SKIPPED_LINES,
    ),
    rejected(
        f"{TRAIN.replace('{images}', 'd')} --max-unreadable 0",
        "max_unreadable",
        *map(class_folder, ("d/a", "d/b")),
        file("d/a/x.png", "x"),
        allowed_files=r"new(/.*)?",
        allowed_lines=".",
    ),
    rejected(
        TRAIN.replace("{images}", "d"),
        "'c'|c",
        *map(class_folder, ("d/train/a", "d/train/b", "d/val/a", "d/val/c")),
        name="an unknown class in validation",
    ),
    rejected(
        TRAIN.replace("{images}", "d"),
        "val",
        *map(class_folder, ("d/train/a", "d/train/b")),
        folder("d/val"),
        name="an empty validation folder",
    ),
    rejected(
        TRAIN.replace("{images}", "d"),
        "train",
        *map(class_folder, ("d/train/a", "d/train/b", "d/other")),
        name="a folder train next to another folder",
    ),
    accepted(TRAIN.replace("{images}", "d"), "top-1", *map(class_folder, ("d/a", "d/b")), link("d/a/up", "..")),
    rejected("train --data file.txt --run new", "file.txt", file("file.txt", "x")),
    rejected("train --data images.zip --run new", "images.zip", file("images.zip", "PK")),
    rejected("train --data torch/cifar10 --run new", "data_root"),
    rejected("train --data torch/nonsense --data-root {cwd} --run new", "nonsense"),
    rejected("train --data hfds/nonsense --run new", "hfds|nonsense"),
    rejected("train image_folder --run new", "data must be given|data"),
    rejected(
        "shard d new --processes 1",
        "read|images",
        *(file(f"d/{n}/{i}.png", "") for n in "ab" for i in range(5)),
        allowed_lines=SKIPPED_LINES,
    ),
    rejected("shard d new --processes 1 --unlabeled", "images", folder("d")),
    rejected("shard {photo} new", "photo"),
    rejected("shard {images}", "OUT"),
    rejected("shard {images} new --index", "--index"),
    rejected("shard {images} --verify", "shards.json"),
    rejected("shard {images} --verify --index", "verify"),
    rejected("shard {images} new --data-root x", "data[-_]root"),
    rejected("shard {images} new --classes x", "classes"),
    *(
        rejected(f"shard {{images}} new --processes 1 --{option}", option.partition("=")[0].replace("-", "[-_ ]"))
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
    rejected("shard {images} old --processes 1", "old", file("old/mine.txt", "x")),
    rejected("shard {images} old --processes 1 --seed 5", "seed|another set", copy("shards", "old")),
    rejected("shard {images}/dark old --unlabeled --processes 1", "old|another set", copy("shards", "old")),
    accepted("shard {images} old --processes 1 --images-per-shard 4", "16 images", copy("shards", "old")),
]

IMAGES = [*SINGLE_IMAGES, *FOLDERS]
