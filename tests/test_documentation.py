"""Every code block of README.md and docs/ runs, as a person types it, in a folder with the files that it reads; a
command of several pages, once.

Commands are called in this process, since each process would import PyTorch again, and trainings get the options in
`SMALL`. A block below a comment `<!-- not run: reason -->` is only parsed, like commands within sentences, and the
indented ones of the pages of evidence, which take hours. Links are checked by the strict build of the site.
"""

import contextlib
import io
import re
import shlex
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from sybil import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

import lambdanets as ln
from lambdanets.cli import main, options
from lambdanets.recipes import find_recipe
from noise_images import write_images, write_two_classes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Options that make commands of the pages fast.
SMALL = {
    "train": "--epochs 1 --batch-size 4 --image-size 64 --workers 0 --warmup-epochs 0 --learning-rate 1e-4",
    "export": "--seconds 0",
    "benchmark": "--shapes 7x7x16 --scopes 3 --repeats 3 --seconds 0.01 --candidates lambdanets convolution",
}
COCO_FILES = ("annotations", "train", "val", "test")
RUN: list[list[str]] = []  # commands on other pages, which need not run again


class ParsedError(Exception):
    """Stops a command after its options were parsed."""


def parse(arguments, patch):
    """Parse the options of a command, without running it."""
    parse_all = options.parse_all

    def parse_only(*arguments, **texts):
        parse_all(*arguments, **texts)
        raise ParsedError

    with patch.context() as context:
        for module in ("train", "options"):  # which other modules import
            context.setattr(f"lambdanets.cli.{module}.parse_all", parse_only)
        context.setattr("lambdanets.cli.train.read_recipe", lambda path: find_recipe("digits"))  # of --resume
        with pytest.raises((ParsedError, SystemExit)) as stopped:
            main(arguments)
    assert not isinstance(stopped.value, SystemExit) or stopped.value.code == 0


class Folder:
    """The current folder. Files that blocks read are written when they are first named."""

    def __init__(self, runs, digits):
        self.photo = sorted((digits / "train").iterdir())[1]
        self.files = {
            "runs/mine": partial(shutil.copytree, runs["classification"]),
            "runs/objects": partial(shutil.copytree, runs["detection"]),
            "runs/regions": partial(shutil.copytree, runs["segmentation"]),
            "PHOTOS": write_two_classes,
            "NEW_PHOTOS": partial(write_images, count=2, brightness=60),
            "MICROGRAPHS": partial(write_images, count=1, brightness=20, height=2),
            "IMAGES": partial(shutil.copytree, digits / "train"),
            "LABELS": self.write_labels,
            **{f"{name}.json": partial(shutil.copy, digits / "train.json") for name in COCO_FILES},
            "photo.jpg": self.write_photo,
            "scan.png": self.write_photo,
            "slide.png": partial(self.write_photo, size=(520, 64)),
            "slide.tif": lambda path: tifffile.imwrite(path, np.ones((2, 64, 520), np.uint16)),
        }

    def write_photo(self, path, size=(96, 96)):
        Image.open(self.photo).convert("RGB").resize(size).save(path)

    def write_labels(self, path):
        path.mkdir()
        for image in Path("IMAGES").iterdir():
            Image.fromarray(np.eye(64, dtype=np.uint16)).save(path / f"{image.stem}.png")

    def provide(self, text):
        for name, write in self.files.items():
            if re.search(rf"(?<![\w/]){re.escape(name)}(?![\w/])", text) and not Path(name).exists():
                Path(name).parent.mkdir(exist_ok=True)
                write(Path(name))


@pytest.fixture
def folder(small_lambda_resnet26t, runs, trained_detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Folder(runs, trained_detector / "digits")


def is_run(example):
    """Whether a block is run; a comment before it may say why it is not."""
    return re.search(r"<!-- not run: .+ -->\n$", example.document.text[: example.region.start]) is None


def run_python(folder, example):
    """Run a block. The shapes that it prints are those in its comments."""
    if not is_run(example):
        compile(example.parsed, example.path, "exec")
        return
    folder.provide(example.parsed)
    folder.python = example.parsed
    with contextlib.redirect_stdout(io.StringIO()) as output:
        PythonEvaluator()(example)
    for shape in re.findall(r"^print\(.*\.shape\)  # (?:.*: )?\((\d[\d, ]*)\)$", example.parsed, re.MULTILINE):
        assert f"[{shape}]" in output.getvalue()


def run_shell(folder, patch, example):
    """Run the commands of a block. Those of other programs are not run."""
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if words[:1] in (["lambdanets"], ["pip"]):  # typed zsh has no comments; cmd neither single quotes nor \
            assert not re.search(r" #|'", line), f"{example.path}: {line}"
            assert f"{line}\n" in example.parsed, f"{example.path}: {line}"
        arguments = words[words.index("lambdanets") + 1 :] if "lambdanets" in words else []
        if is_run(example):
            assert words[:1] in ([], ["lambdanets"]), f"{example.path}: say why it is not run: {line}"
        if not arguments:
            continue
        for word in arguments:
            if word.endswith(".py"):
                Path(word).write_text(folder.python)
        # the journey of ten minutes uses what its own commands have made
        if not is_run(example) or (arguments in RUN and Path(example.path).name != "ten_minutes.md"):
            parse(arguments, patch)
            continue
        RUN.append(arguments)
        folder.provide(re.sub(r"--(run|out) \S+", "", line))
        small = [] if "--resume" in arguments else SMALL.get(arguments[0], "").split()
        assert main([*arguments, *small]) == 0, f"{example.path}, line {example.line}: {line}"


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(page, folder, monkeypatch):
    python = CodeBlockParser("python", partial(run_python, folder))
    shell = CodeBlockParser("sh", partial(run_shell, folder, monkeypatch))
    for example in Document.parse(str(page), python, shell):
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_and_evidence_parse(page, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()  # the folder of --out must exist
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"^```(.*)\n(?:.*\n)*?```$", text, re.MULTILINE)) <= {"python", "sh", "text"}
    text = re.sub(r"^```.*\n(?:.*\n)*?```$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    for command in re.findall(r"^ {4}(lambdanets .*)$", text, re.MULTILINE) + re.findall(r"`(lambdanets [^`]*)`", text):
        parse(shlex.split(command, comments=True)[1:], monkeypatch)


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda path: path.name)
def test_pages_and_examples_use_only_public_names(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\s*(?:from|import) lambdanets\.(?!recipes).*", text, re.MULTILINE) == []
    assert set(re.findall(r"\bln\.(\w+)", text)) <= set(ln.__all__)
