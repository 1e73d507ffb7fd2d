"""Paths: missing, empty, too long, without permission, link loops, pipes, sockets, devices."""

from .files import chmod, copy, file, folder, image, link, pipe, unix_socket
from .inputs import Input, accepted, rejected
from .options import TRAIN

LONG = "x" * 300
# Lines that report skipped images.
SKIPPED_LINES = r"^skipped \d+ unreadable images|^  "
DEEP = "/".join(["x" * 200] * 30)
# Commands by the kind of path that they read; {} is the path.
READ_PATHS = {
    "data": "train --epochs 1 --run new --data {}",
    "checkpoint": "evaluate {}",
    "images": "predict {{run}} {}",
    "weights": TRAIN.replace("{", "{{").replace("}", "}}") + " --weights {}",
    "shards": "pseudo-label {{run}} {} new",
    "labels": "pseudo-label select {} new",
    "images to shard": "shard {} new",
    "report": "compare --report {}",
    "measured": "tables 3 --measured {}",
    "runs": "detect report {}",
    "resume": "train --resume {}",
    "comparison": "compare --resume {}",
}
# Paths that no command can read: the path, a pattern of the error message, and the setup.
INVALID_PATHS = {
    "missing": ("nowhere", "nowhere", ()),
    "an empty path": ("''", ".", ()),
    "too long": (LONG, "x{100}", ()),
    "null byte": ("'a\0b'", "null|a.*b", ()),
    "a named pipe": ("pipe", "pipe", (pipe("pipe"),)),
    "a link to itself": ("circle", "circle", (link("circle", "circle"),)),
    "an empty file": ("empty", "empty", (file("empty"),)),
    "an empty folder": ("void", "void", (folder("void"),)),
}
# Commands by the kind of path that they write; {} is the path.
WRITTEN_PATHS = {
    "run": TRAIN.replace("--run new", "--run {}").replace("{images}", "{{images}}"),
    "predictions": "predict {{run}} {{photo}} --out {}",
    "shards": "shard {{images}} {} --processes 1",
    "labels": "pseudo-label {{run}} {{shards}} {}",
    "selection": "pseudo-label select {{labels}} {}",
    "tables": "tables 3 --out {}",
    "comparison": "compare scope --data {{images}} --epochs 1 --variants 3x3 --seeds 0 --out {}",
    "benchmark": "benchmark scaling --sides 4 --lengths 8 --repeats 1 --seconds 0.01 --out {}",
}
# Paths that no command can write: the path, a pattern of the error message, and the setup.
UNWRITABLE_PATHS = {
    "an empty path": ("''", ".", ()),
    "too long": (LONG, "x{100}|[Ll]ong", ()),
    "too deep": (DEEP, "x{100}|[Ll]ong", ()),
    "null byte": ("'a\0b'", "null|a.*b", ()),
    "inside a file": ("file/new", "file", (file("file", "text"),)),
    "inside a read-only folder": ("closed/new", "closed", (folder("closed"), chmod("closed", 0o500))),
    "inside /proc": ("/proc/nowhere", "/proc", ()),
}

PATHS: list[Input] = [
    *(
        rejected(
            command.format(path),
            f"{output}|none of the 1 images",
            *setup,
            allowed_lines=SKIPPED_LINES,
            name=f"{case}: {problem}",
        )
        for case, command in READ_PATHS.items()
        for problem, (path, output, setup) in INVALID_PATHS.items()
    ),
    *(
        rejected(command.format(path), output, *setup, name=f"{case}: {problem}")
        for case, command in WRITTEN_PATHS.items()
        for problem, (path, output, setup) in UNWRITABLE_PATHS.items()
    ),
    rejected("evaluate socket", "socket", unix_socket("socket")),
    rejected(
        "predict {run} socket.png",
        "socket|none of the 1",
        unix_socket("socket.png"),
        allowed_lines=r"socket\.png\b|skipped",
    ),
    rejected("predict {run} /dev/null", "/dev/null|none of the 1", allowed_lines="/dev/null|skipped"),
    rejected("predict {run} /dev/zero", "/dev/zero|none of the 1", allowed_lines="/dev/zero|skipped"),
    rejected("predict /dev/null {photo}", "/dev/null"),
    rejected("predict /dev/zero {photo}", "/dev/zero"),
    rejected("evaluate /proc/self/mem", "/proc/self/mem"),
    rejected("train --data /dev/null --run new", "/dev/null"),
    rejected(
        "train --data pipes --run new", "pipe|a.png", pipe("pipes/a/a.png"), pipe("pipes/b/b.png"), allowed_lines="."
    ),
    rejected("predict {run} pipes", "none of the 1|a.png", pipe("pipes/a.png"), allowed_lines=r"a\.png|skipped"),
    rejected("shard pipes new --unlabeled --processes 1", "a.png|images", pipe("pipes/a.png"), allowed_lines=r"a\.png"),
    rejected(
        "predict {run} dangling.png",
        "dangling|none of the 1",
        link("dangling.png", "nowhere.png"),
        allowed_lines="dangling|skipped",
    ),
    rejected("predict {run} '*.nothing'", "nothing"),
    rejected("predict {run} '['", r"\["),
    rejected("predict {run}", "IMAGES"),
    rejected("predict {run} void", "void|image", folder("void")),
    rejected(
        "predict {run} closed.png", "closed|none", image("closed.png"), chmod("closed.png"), allowed_lines="closed|ski"
    ),
    rejected("predict {run} closed", "closed", folder("closed"), chmod("closed")),
    rejected("train --data closed --run new", "closed", folder("closed"), chmod("closed")),
    rejected("evaluate w.ckpt", "w.ckpt", file("w.ckpt", "x"), chmod("w.ckpt")),
    rejected("evaluate w.safetensors", "w.safetensors", file("w.safetensors", "x"), chmod("w.safetensors")),
    rejected("train --resume old", "recipe", copy("run", "old"), chmod("old/recipe.json")),
    accepted("predict {run} $'a'.png b*.png", "2 images", image("$a.png"), image("b*.png")),
    accepted("predict {run} folder", "1 images", image("folder/a/b/c.PNG", file_format="PNG")),
    accepted("predict {run} here", "1 images", image("a.png"), link("here", ".")),
]
