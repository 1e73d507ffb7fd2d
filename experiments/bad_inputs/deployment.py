"""`adopt` and `export`: unknown models, other architectures, damaged files, invalid shapes and outputs that exist."""

import json

import torch

from .files import file, folder, malicious_pickle, pipe
from .inputs import Input, Setup, accepted, rejected
from .weights import edit_weights, set_first_element

ADOPT = "adopt {source} --out model --seconds 0"
EXPORT = "export {source} --out model.onnx --seconds 0"
SMALL = "lambda_resnet20_small --image-size 16"


def save_tensors(content: object) -> Setup:
    def setup(cwd, fixtures) -> None:
        torch.save(content, cwd / "w.pth")

    return setup


def adopt(source: str, output: str, *setup: Setup, **fields: str) -> Input:
    """An `adopt` command that must be rejected."""
    return rejected(ADOPT.format(source=source), output, *setup, **fields)


def export(source: str, output: str, *setup: Setup, **fields: str) -> Input:
    """An `export` command that must be rejected."""
    return rejected(EXPORT.format(source=source), output, *setup, **fields)


DEPLOYMENT: list[Input] = [
    adopt("lambda_resnet26 --no-pretrained", "no model named"),
    adopt("resnet18 --no-pretrained", "must contain lambda layers"),
    adopt("timm/resnet18 --no-pretrained", "must contain lambda layers"),
    adopt("''", "."),
    adopt("missing", "missing"),
    adopt("w.pth", "model must be the name", save_tensors({"a": torch.ones(1)})),
    adopt("w.pth --model lambda_resnet26t", "another architecture", save_tensors({"a": torch.ones(1)})),
    adopt("w.pth --model lambda_resnet26t", r"w\.pth", save_tensors([1, 2, 3]), name="adopt a list"),
    adopt("w.pth --model lambda_resnet26t", r"w\.pth", file("w.pth", b""), name="adopt an empty file"),
    adopt("w.pth --model lambda_resnet26t", r"w\.pth", malicious_pickle("w.pth"), name="adopt a pickle"),
    adopt("w.pth --model lambda_resnet26t", r"w\.pth", pipe("w.pth"), name="adopt a named pipe"),
    adopt("saved", r"config\.json", folder("saved"), name="adopt an empty folder"),
    adopt("saved", r"config\.json", file("saved/config.json", b"{"), name="adopt with damaged JSON"),
    adopt("saved", r"model\.safetensors", file("saved/config.json", json.dumps({"num_classes": 3}).encode())),
    adopt("lambda_resnet26t --batch-size 0", "batch_size must be"),
    adopt("lambda_resnet26t --device nowhere --no-pretrained", "device"),
    adopt("lambda_resnet26t --no-pretrained --images none.png", r"none\.png"),
    rejected("adopt lambda_resnet26t --no-pretrained", "--out must be given"),
    rejected("adopt", "SOURCE"),
    export("no_model", "no model named"),
    export("missing.safetensors", r"missing\.safetensors"),
    export("''", "."),
    export("empty", "empty", folder("empty")),
    export("w.safetensors", r"w\.safetensors", file("w.safetensors", b""), name="export an empty file"),
    export("w.safetensors", r"w\.safetensors", pipe("w.safetensors"), name="export a named pipe"),
    export("w.safetensors", "finite weights", edit_weights(set_first_element(float("nan"))), name="export NaN weights"),
    export(f"{SMALL} --to tensorrt", "--to must be one of"),
    export(f"{SMALL} --to openvino", r"must end in \.xml"),
    export(f"{SMALL} --batch-size 0", "batch_size must be"),
    export("lambda_resnet20_small --image-size 0", "image_size must be"),
    export("lambda_resnet20_small --image-size 1 2 3", "image_size must be one or two sides"),
    export("vit_tiny_patch16_224 --dynamic", "without dynamic"),
    export(f"{SMALL} --int8 digits", "model must be a classifier or a detector for int8"),
    rejected(f"export {SMALL} --to aoti --out a.pt2 --int8 digits --seconds 0", "to must be onnx or openvino for int8"),
    rejected(
        f"export {SMALL} --to openvino --out a.xml --dynamic --int8 digits --seconds 0",
        "dynamic must be False for int8",
    ),
    export("{run} --int8 missing", "missing"),
    export("{run} --int8 empty", "empty", folder("empty")),
    export("{run} --int8 a.txt", r"a\.txt", file("a.txt", b"x")),
    rejected(f"export {SMALL} --to pt2 --out a.onnx --seconds 0", r"must end in \.pt2"),
    rejected(
        f"export {SMALL} --out a.onnx --seconds 0", r"a\.onnx exists", file("a.onnx", b"x"), name="export over a file"
    ),
    rejected(f"export {SMALL} --out file/a.onnx --seconds 0", "file", file("file", b"x"), name="export below a file"),
    rejected(f"export {SMALL} --out '' --seconds 0", "path"),
    accepted(f"export {SMALL} --out new/folder/a.onnx --seconds 0", "MiB"),
]
