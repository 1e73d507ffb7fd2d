"""The Python code of docs/inference.md runs; pages and examples import only public names."""

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import lambdanets as ln

ROOT = Path(__file__).parents[1]
BLOCKS = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def runs(quick_run, trained_detector, two_classes, tmp_path, monkeypatch):
    """Change to a folder with the runs and images that the pages use."""
    (tmp_path / "runs").mkdir()
    for name, folder in (("mine", quick_run), ("objects", trained_detector / "run")):
        (tmp_path / "runs" / name).symlink_to(folder)
    shutil.copy(two_classes / "dark/00.png", tmp_path / "scan.png")
    photo = sorted((trained_detector / "digits/train").iterdir())[1]
    Image.open(photo).convert("RGB").save(tmp_path / "photo.jpg", quality=100)
    shutil.copy(trained_detector / "digits/train.json", tmp_path / "test.json")
    (tmp_path / "TEST").symlink_to(trained_detector / "digits/train")
    monkeypatch.chdir(tmp_path)


def test_python_code_of_inference_page_runs(runs, capsys):
    first, *others = BLOCKS.findall((ROOT / "docs/inference.md").read_text(encoding="utf-8"))
    assert len(first.splitlines()) == 5
    exec(first, variables := {})
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 2
    assert all(line.startswith(("dark 0.", "light 0.")) for line in output)
    for block in others:
        exec(block, variables)
    assert len(variables["predictions"]) == 7
    assert isinstance(variables["detector"], ln.Detector)
    assert len(variables["evaluation"].readable) == 4


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")], ids=lambda p: p.name
)
def test_pages_and_examples_import_only_public_names(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\s*(?:from|import) lambdanets\.(?!recipes).*", text, re.MULTILINE) == []
    used_names = set(re.findall(r"\bln\.(\w+)", text))
    assert used_names <= set(ln.__all__)
