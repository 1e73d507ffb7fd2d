"""Paths: missing, empty, too long, invalid UTF-8, without permission, link loops, pipes, sockets, devices."""

from .inputs import Input, accepted, refused
from .makers import copied, file, folder, forbidden, image, link, pipe, unix_socket
from .options import TRAIN

LONG = "x" * 300
UNREADABLE = r"^skipped \d+ unreadable images|^  "
DEEP = "/".join(["x" * 200] * 30)
# Paths that commands read, each with a command.
READ = {
    "data": "train --epochs 1 --run new --data {}",
    "checkpoint": "evaluate {}",
    "images": "predict {{run}} {}",
    "weights": TRAIN.replace("{", "{{").replace("}", "}}") + " --weights {}",
    "shards": "pseudo-label {{run}} {} new",
    "labels": "pseudo-label select {} new",
    "set": "shard {} new",
    "report": "compare --report {}",
    "measured": "tables 3 --measured {}",
    "runs": "detect report {}",
    "resume": "train --resume {}",
    "comparison": "compare --resume {}",
}
KINDS = {
    "missing": ("nowhere", "nowhere", ()),
    "the empty name": ("''", ".", ()),
    "too long": (LONG, "x{100}", ()),
    "null byte": ("'a\0b'", "null|a.*b", ()),
    "a named pipe": ("pipe", "pipe", (pipe("pipe"),)),
    "a link to itself": ("circle", "circle", (link("circle", "circle"),)),
    "an empty file": ("empty", "empty", (file("empty"),)),
    "an empty folder": ("void", "void", (folder("void"),)),
}
# Paths that commands write, each with a command.
WRITTEN = {
    "run": TRAIN.replace("--run new", "--run {}").replace("{images}", "{{images}}"),
    "predictions": "predict {{run}} {{photo}} --out {}",
    "shards": "shard {{images}} {} --processes 1",
    "labels": "pseudo-label {{run}} {{shards}} {}",
    "selection": "pseudo-label select {{labels}} {}",
    "tables": "tables 3 --out {}",
    "comparison": "compare scope --data {{images}} --epochs 1 --variants 3x3 --seeds 0 --out {}",
    "benchmark": "benchmark scaling --sides 4 --lengths 8 --repeats 1 --seconds 0.01 --out {}",
}
NOT_WRITABLE = {
    "the empty name": ("''", ".", ()),
    "too long": (LONG, "x{100}|[Ll]ong", ()),
    "too deep": (DEEP, "x{100}|[Ll]ong", ()),
    "null byte": ("'a\0b'", "null|a.*b", ()),
    "below a file": ("file/new", "file", (file("file", "text"),)),
    "below a folder without write permission": ("closed/new", "closed", (folder("closed"), forbidden("closed", 0o500))),
    "below /proc": ("/proc/nowhere", "/proc", ()),
}

PATHS: list[Input] = [
    *(
        refused(command.format(path), f"{says}|none of the 1 images", *make, lines=UNREADABLE, name=f"{what}: {kind}")
        for what, command in READ.items()
        for kind, (path, says, make) in KINDS.items()
    ),
    *(
        refused(command.format(path), says, *make, name=f"{what}: {kind}")
        for what, command in WRITTEN.items()
        for kind, (path, says, make) in NOT_WRITABLE.items()
    ),
    refused("evaluate socket", "socket", unix_socket("socket")),
    refused(
        "predict {run} socket.png", "socket|none of the 1", unix_socket("socket.png"), lines=r"socket\.png\b|skipped"
    ),
    refused("predict {run} /dev/null", "/dev/null|none of the 1", lines="/dev/null|skipped"),
    refused("predict {run} /dev/zero", "/dev/zero|none of the 1", lines="/dev/zero|skipped"),
    refused("predict /dev/null {photo}", "/dev/null"),
    refused("predict /dev/zero {photo}", "/dev/zero"),
    refused("evaluate /proc/self/mem", "/proc/self/mem"),
    refused("train --data /dev/null --run new", "/dev/null"),
    refused("train --data pipes --run new", "pipe|a.png", pipe("pipes/a/a.png"), pipe("pipes/b/b.png"), lines="."),
    refused("predict {run} pipes", "none of the 1|a.png", pipe("pipes/a.png"), lines=r"a\.png|skipped"),
    refused("shard pipes new --unlabeled --processes 1", "a.png|images", pipe("pipes/a.png"), lines=r"a\.png"),
    refused(
        "predict {run} dangling.png",
        "dangling|none of the 1",
        link("dangling.png", "nowhere.png"),
        lines="dangling|skipped",
    ),
    refused("predict {run} '*.nothing'", "nothing"),
    refused("predict {run} '['", r"\["),
    refused("predict {run}", "IMAGES"),
    refused("predict {run} void", "void|image", folder("void")),
    refused(
        "predict {run} closed.png", "closed|none", image("closed.png"), forbidden("closed.png"), lines="closed|ski"
    ),
    refused("predict {run} closed", "closed", folder("closed"), forbidden("closed")),
    refused("train --data closed --run new", "closed", folder("closed"), forbidden("closed")),
    refused("evaluate w.ckpt", "w.ckpt", file("w.ckpt", "x"), forbidden("w.ckpt")),
    refused("evaluate w.safetensors", "w.safetensors", file("w.safetensors", "x"), forbidden("w.safetensors")),
    refused("train --resume old", "recipe", copied("run", "old"), forbidden("old/recipe.json")),
    accepted("predict {run} $'a'.png b*.png", "2 images", image("$a.png"), image("b*.png")),
    accepted("predict {run} folder", "1 images", image("folder/a/b/c.PNG", kind="PNG")),
    accepted("predict {run} here", "1 images", image("a.png"), link("here", ".")),
]
