"""Writes the sources of the documentation site: the pages of docs/, and the reference from the code.

    python dev/docs_sources.py build/docs

`make docs` runs it, and then zensical. The pages are those that GitHub shows, so links to files of the repository that
are not pages become their paths. Tutorials are run, which takes minutes. The reference is written from
docstrings, from the help of the commands and from the recipes.
"""

import contextlib
import importlib
import io
import os
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

import lambdanets
from lambdanets.cli import COMMANDS, main
from lambdanets.recipes import list_recipes
from lambdanets_lab.benchmark.options import OPTIONS

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = ("DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")
INDEX = "index.md"
# Sections of the page on the public names; each of `lambdanets.__all__` is in one of them.
SECTIONS = {
    "Layers": ["LambdaLayer2d", "LambdaLayer1d", "LambdaLayer3d", "LambdaLayer", "RelativeEmbedding"],
    "Causal decoding": ["start_decoding", "decode_step"],
    "Models": ["create_model", "list_models", "replace_convolutions", "mask_rcnn", "adopt", "foreign_state_dict"],
    "Trained models": ["load", "Classifier", "Detector", "Segmenter", "evaluate", "save_pretrained", "push_to_hub"],
    "Deployment and explanations": ["export", "explain", "attention_map"],
    "Operations": ["position_interaction", "lambda_interaction", "plan"],
}
# The first words of commands whose options depend on them.
WORDS = {"train": ["objects", "regions", "imagenet_pseudo"], "pseudo-label": ["select"], "compare": ["all"]}
WORDS["benchmark"] = list(OPTIONS)


def write_sources(out: Path) -> None:
    """Write all pages into a folder."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("README.md"))
    write_tutorials(out / "tutorials")
    pages = {ROOT / "docs" / path.relative_to(out): str(path.relative_to(out)) for path in out.rglob("*.md")}
    pages |= {ROOT / name: name for name in PROJECT_PAGES} | {ROOT / "README.md": INDEX}
    for source, name in pages.items():
        text = (out / name if (out / name).exists() else source).read_text(encoding="utf-8")
        text = text.replace("<details>", "<details markdown>")
        (out / name).write_text(replace_links(text, source, pages), encoding="utf-8")
    (out / "python.md").write_text(public_names(), encoding="utf-8")
    (out / "commands.md").write_text(commands(), encoding="utf-8")
    (out / "recipes.md").write_text(recipes(), encoding="utf-8")


def write_tutorials(folder: Path) -> None:
    """Run each tutorial, and write it as a page and as a notebook, both with the output of its cells."""
    for source in sorted(folder.glob("*.py")):
        notebook = jupytext.read(source)
        with tempfile.TemporaryDirectory() as work:
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": work}}).execute()
        for cell in notebook.cells:  # warnings of other packages name files of this machine
            cell["outputs"] = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
            if cell.cell_type == "markdown":
                del cell["outputs"]
        jupytext.write(notebook, source.with_suffix(".ipynb"))
        page, resources = MarkdownExporter().from_notebook_node(notebook)
        for name, content in resources["outputs"].items():
            (folder / f"{source.stem}_{name}").write_bytes(content)
            page = page.replace(f"({name})", f"({source.stem}_{name})")
        page += f"\n[Download this page as a notebook]({source.stem}.ipynb), or [as a script]({source.name}).\n"
        source.with_suffix(".md").write_text(page, encoding="utf-8")


def replace_links(text: str, source: Path, pages: dict[Path, str]) -> str:
    """Replace links between pages by those of the site, and links to other files by their paths."""

    def replace(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        file, _, anchor = link.partition("#")
        if "://" in link or not file:
            return match[0]
        target = Path(os.path.normpath(source.parent / file))
        if target == ROOT / "docs/README.md":
            target = ROOT / "README.md"
        if target in pages:
            page = os.path.relpath(pages[target], Path(pages[source]).parent)
            return f"{image}[{label}]({page}{'#' + anchor if anchor else ''})"
        path = target.relative_to(ROOT)
        if path.parts[0] == "docs":
            file = os.path.relpath(path, Path("docs", pages[source]).parent)
            return f"{image}[{label}]({file})"
        if not target.exists():
            raise SystemExit(f"{source.relative_to(ROOT)} has a link to {link}, which does not exist")
        return label if label.strip("`") in str(path) else f"{label} (`{path}`)"

    return re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", replace, text)


def public_names() -> str:
    """The page on the public names, which mkdocstrings fills in."""
    lines = [
        "# In Python",
        "",
        "These names are stable; other modules may change. Letters in shapes: b batch size, h heads,",
        "n query positions, m context positions, k query depth, v value depth, u intra-depth, r sides of the scope.",
    ]
    for section, names in SECTIONS.items():
        lines += ["", f"## {section}", ""]
        for name in names:
            value = getattr(lambdanets, name)
            lines += [f"::: {value.__module__}.{name}"]
            if hasattr(value, "predict"):
                lines += ["    options:", "      members: [predict, to]"]
    for package in ("layers", "models", "ops"):
        module = importlib.import_module(f"lambdanets.{package}")
        names = sorted(set(module.__all__) - set(lambdanets.__all__))
        if names:
            lines += ["", f"## lambdanets.{package}", ""]
            lines += [f"::: {getattr(module, name).__module__}.{name}" for name in names]
    missing = set(lambdanets.__all__) - {"layers", "models", "ops"} - {n for names in SECTIONS.values() for n in names}
    if missing:
        raise SystemExit(f"SECTIONS must have all public names, got none for {', '.join(sorted(missing))}")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The page on the commands: the help of each, also with `WORDS`."""
    lines = ["# Commands", "", "The help of each command, as `lambdanets COMMAND --help` prints it."]
    for command in COMMANDS:
        text = help_of(command)
        lines += ["", f"## {command}", "", "```text", text, "```"]
        for word in WORDS.get(command, ()):
            lines += ["", f"### {command} {word}", "", "```text", help_of(command, word), "```"]
    return "\n".join(lines) + "\n"


def help_of(*words: str) -> str:
    """The output of a command with --help."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return output.getvalue().rstrip()


def recipes() -> str:
    """The page on the recipes: the docstring of each."""
    lines = ["# Recipes", "", "`lambdanets train RECIPE` trains one; each is a Python file to copy and change."]
    for name in list_recipes():
        package = "lambdanets" if find_spec(f"lambdanets.recipes.{name}") else "lambdanets_lab"
        module = importlib.import_module(f"{package}.recipes.{name}")
        first, _, rest = (module.__doc__ or "").strip().partition("\n")
        lines += ["", f"## {name}", "", first, "", "```text", rest.strip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "88"
    write_sources(Path(sys.argv[1]))
