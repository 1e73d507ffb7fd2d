"""Limits of the code: lines, order of imports, and files crossed by a forward call. Run by `make lint`.

python dev/bars.py prints one line per limit, and exits with 1 if one is exceeded. Features and moved code raise them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src/lambdanets"
# Folders import only from the folders after them; "" is the root of the package, whose entry points are free.
ORDER = ("cli", "recipes", "tasks", "training", "inference", "data", "models", "adoption", "layers", "ops", "")
ENTRY_POINTS = ("__init__.py", "__main__.py", "_timm.py")
MAX_LINES = {"core": 15_578, "lab": 7_615, "native": 1_856, "everything": 26_658, "tests": 16_360}
MAX_FILES_OF_FORWARD, MAX_CALLS_OF_FORWARD = 6, 50  # the chosen algorithm depends on the processor

FORWARD = """
import sys, torch, lambdanets as ln
from pathlib import Path
root, files, calls = str(Path(ln.__file__).parent), set(), 0
layer, x = ln.LambdaLayer2d(64), torch.randn(2, 64, 28, 28)
def count(frame, event, argument):
    global calls
    if event == "call" and frame.f_code.co_filename.startswith(root):
        files.add(frame.f_code.co_filename)
        calls += 1
layer(x)
sys.setprofile(count)
layer(x)
sys.setprofile(None)
print(len(files), calls)
"""


def count_lines(*folders: str) -> int:
    files = [file for folder in folders for suffix in ("py", "c", "h") for file in (ROOT / folder).rglob(f"*.{suffix}")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def room(parts: tuple[str, ...]) -> str:
    """The folder of the package that a file or module is in."""
    return parts[0] if parts and (CORE / parts[0]).is_dir() else ""


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "lambdanets":
            yield from (f"lambdanets.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def wrong_imports() -> Iterator[str]:
    """Imports against the order, and of lambdanets_lab, which the core may find only by name."""
    for file in sorted(CORE.rglob("*.py")):
        path = file.relative_to(CORE)
        if str(path) in ENTRY_POINTS:
            continue
        for module in imported_modules(file):
            package, *parts = module.split(".")
            upwards = package == "lambdanets" and ORDER.index(room(tuple(parts))) < ORDER.index(room(path.parts))
            if upwards or package == "lambdanets_lab":
                yield f"{path} imports {module}"


def main() -> int:
    lines = {
        "core": count_lines("src"),
        "lab": count_lines("lab"),
        "native": count_lines("native"),
        "everything": count_lines("src", "lab", "native", "experiments"),
        "tests": count_lines("tests"),
    }
    command = [sys.executable, "-c", FORWARD]
    files, calls = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    imports = list(wrong_imports())
    bars = [(f"lines of {name}", count, MAX_LINES[name]) for name, count in lines.items()]
    bars += [
        ("files of a layer's forward call", files, MAX_FILES_OF_FORWARD),
        ("its calls", calls, MAX_CALLS_OF_FORWARD),
        ("imports against the order", len(imports), 0),
    ]
    for name, value, limit in bars:
        print(f"{'ok  ' if value <= limit else 'FAIL'} {name}: {value:,} of {limit:,}")
    print(*(f"     {line}" for line in imports[:10]), sep="\n")
    return int(any(value > limit for _, value, limit in bars))


if __name__ == "__main__":
    sys.exit(main())
