"""Recipe files, run folders, and comparisons: damaged, of the wrong type, or without permission."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .files import chmod, copy, edit_json, file, flip_byte, folder, pipe, remove, truncate
from .fixtures import SMALL_RECIPE
from .inputs import Input, Setup, accepted, rejected
from .options import TRAIN

IMPORTS = (
    "from lambdanets.training.classification.recipe import ClassificationRecipe\n"
    "from lambdanets.training.detection.recipe import DetectionRecipe\n"
)
# Invalid recipe files: the code, and a pattern of the error message.
RECIPE_FILES = {
    "empty": ("", "recipe"),
    "a syntax error": ("recipe = (", "SyntaxError|never closed"),
    "an indentation error": ("  x = 1\n y = 2", "Indentation"),
    "no recipe": ("x = 1", "recipe = ClassificationRecipe"),
    "None": ("recipe = None", "recipe = ClassificationRecipe"),
    "an object": ("recipe = {'epochs': 1}", "recipe = ClassificationRecipe"),
    "the class ClassificationRecipe": ("recipe = ClassificationRecipe", "recipe = ClassificationRecipe"),
    "an unknown field": ("recipe = ClassificationRecipe(epoch=1)", "epoch.*epochs"),
    "a value out of range": ("recipe = ClassificationRecipe(epochs=0)", "epochs"),
    "a value of the wrong type": ("recipe = ClassificationRecipe(epochs='x')", "epochs"),
    "raises": ("raise ValueError('the reason')", "the reason"),
    "raises in two lines": ("raise ValueError('the\\nreason')", "the.*reason"),
    "raises with an escape sequence": ("raise ValueError('\\x1b[31mred')", "red"),
    "an import of a missing module": ("import missing_module", "missing_module"),
    "exits": ("import sys; sys.exit(7)", "SystemExit|exit"),
    "exits with 0": ("import sys; sys.exit()", "SystemExit|exit"),
    "recurses": ("def f(): f()\nf()", "recursion"),
    "null bytes": ("x = 1\0", "null|source code"),
    "for detection": ("recipe = DetectionRecipe()", "detect train"),
}
# An error message of fewer than 600 characters.
SHORT_MESSAGE = r"^lambdanets: (?!.{600})"

RECIPES: list[Input] = [
    *(
        rejected(
            f"train r.py --run new {SMALL_RECIPE}",
            f"{SHORT_MESSAGE}.*({output})",
            file("r.py", IMPORTS + text),
            name=f"recipe: {case}",
        )
        for case, (text, output) in RECIPE_FILES.items()
    ),
    rejected("train r.py --run new", r"r\.py", file("r.py", b"\xff\xfe\x00"), name="a recipe that is not text"),
    rejected("train r.py --run new", r"r\.py", folder("r.py"), name="a recipe that is a folder"),
    rejected("train r.py --run new", r"r\.py", pipe("r.py"), name="a recipe that is a pipe"),
    rejected("train nowhere.py --run new", r"nowhere\.py"),
    rejected("train closed.py --run new", r"closed\.py", file("closed.py", "recipe = 1"), chmod("closed.py")),
    rejected(
        "detect train r.py --run new",
        "DetectionRecipe|lambdanets train",
        file("r.py", IMPORTS + "recipe = ClassificationRecipe()"),
    ),
    Input("train r.py --run new", 130, "", (file("r.py", "raise KeyboardInterrupt"),), name="a recipe that interrupts"),
    accepted(
        f"train r.py --run new --data {{images}} --model lambda_resnet20_small {SMALL_RECIPE}",
        "top-1",
        file("r.py", IMPORTS + "recipe = ClassificationRecipe()"),
    ),
]

UNPRINTABLE = "class E(Exception):\n def __str__(self): raise RuntimeError('no')\nraise E()"
FINISHED = copy("run", "old")


def unfinished(cwd: Path, fixtures: Mapping[str, Any]) -> None:
    """Create the folder `old`: a run with checkpoints but without a result."""
    shutil.copytree(fixtures["run"], cwd / "old")
    (cwd / "old/result.json").unlink()
    (cwd / "old/weights.safetensors").unlink()


RESUME, TRAIN_INTO_OLD = "train --resume old", TRAIN.replace("--run new", "--run old")
# Changes that make recipe.json invalid or unlike the checkpoint's recipe.
INVALID_RECIPES: dict[str, Callable[[Any], Any]] = {
    "a list": lambda content: [],
    "an unknown field": lambda content: content.update(nonsense=1),
    "no data": lambda content: content.pop("data") and None,
    "no model": lambda content: content.pop("model") and None,
    "an unknown task": lambda content: content.update(task="poetry"),
    "a task is a list": lambda content: content.update(task=[]),
    "epochs is a string": lambda content: content.update(epochs="x"),
    "epochs 0": lambda content: content.update(epochs=0),
    "data is a number": lambda content: content.update(data=5),
    "a different number of epochs": lambda content: content.update(epochs=5),
    "data that does not exist": lambda content: content.update(data="/nowhere"),
}
CHECKPOINTS = ("old/checkpoints/last.ckpt", "old/checkpoints/before.ckpt")


def unfinished_with_one_checkpoint(*setup: Setup) -> tuple[Setup, ...]:
    """An unfinished run without before.ckpt, then these setup functions."""

    def remove_before(cwd: Path, fixtures: Mapping[str, Any]) -> None:
        (cwd / CHECKPOINTS[1]).unlink(missing_ok=True)

    return (unfinished, remove_before, *setup)


def check_result(cwd: Path) -> None:
    """Check that result.json has a top-1."""
    assert 0 <= json.loads((cwd / "old/result.json").read_bytes())["top1"] <= 1


RUNS: list[Input] = [
    rejected("train r.py --run new", "r.py", file("r.py", UNPRINTABLE), name="a recipe whose error cannot be printed"),
    *(
        rejected(
            RESUME,
            r"recipe\.json|checkpoint|nowhere|last\.ckpt",
            *unfinished_with_one_checkpoint(edit_json("old/recipe.json", change)),
            name=f"recipe.json: {case}",
        )
        for case, change in INVALID_RECIPES.items()
    ),
    *(
        rejected(RESUME, r"recipe\.json", unfinished, file("old/recipe.json", content), name=f"recipe.json: {case}")
        for case, content in {
            "empty": "",
            "truncated": '{"data": ',
            "not UTF-8": b"\xff",
            "deeply nested": "[" * 100_000,
        }.items()
    ),
    *(
        rejected(RESUME, r"last\.ckpt", *unfinished_with_one_checkpoint(*setup), name=f"last.ckpt: {case}")
        for case, setup in {
            "empty": (truncate(CHECKPOINTS[0], 0),),
            "truncated": (truncate(CHECKPOINTS[0], 0.5),),
            "one byte changed": (flip_byte(CHECKPOINTS[0]),),
            "text": (file(CHECKPOINTS[0], "x"),),
            "weights": (copy("run/weights.safetensors", CHECKPOINTS[0]),),
        }.items()
    ),
    *(
        rejected(RESUME, r"result\.json", FINISHED, file("old/result.json", content), name=f"result.json: {case}")
        for case, content in {
            "empty": "",
            "truncated": '{"top1": ',
            "a list": "[]",
            "deeply nested": "[" * 100_000,
        }.items()
    ),
    rejected(
        RESUME,
        r"result\.json",
        FINISHED,
        edit_json("old/result.json", lambda c: c.update(top1="x")),
        name="string top1",
    ),
    rejected(
        RESUME,
        r"result\.json",
        FINISHED,
        edit_json("old/result.json", lambda c: c.pop("data") and None),
        name="no data",
    ),
    rejected(
        RESUME, r"result\.json", FINISHED, remove("old/result.json"), folder("old/result.json"), allowed_files="old/.*"
    ),
    rejected(RESUME, "recipe.json", folder("old"), name="an empty folder"),
    rejected("train --resume {detector}", "detect train --resume"),
    rejected("detect train --resume {run}", "lambdanets train --resume"),
    rejected(f"{TRAIN_INTO_OLD} --seed 5", "seed", FINISHED, name="a different seed"),
    rejected(f"{TRAIN_INTO_OLD} --learning-rate 0.5", "learning_rate", unfinished, name="a different learning rate"),
    rejected(TRAIN_INTO_OLD, "detection", copy("detector", "old"), name="a detection run"),
    rejected(TRAIN_INTO_OLD, "old", file("old/mine.txt", "x"), name="a folder with other files"),
    rejected(TRAIN_INTO_OLD, "old", file("old", "x"), name="a file"),
    rejected(TRAIN_INTO_OLD, "recipe.json", FINISHED, file("old/recipe.json", "{"), name="a damaged recipe.json"),
    rejected(TRAIN_INTO_OLD, "old", folder("old"), chmod("old", 0o500), name="a read-only folder"),
    rejected(RESUME, "old", unfinished, chmod("old", 0o500), name="a read-only run"),
    accepted(RESUME, "top-1", unfinished, check=check_result, name="no result"),
    accepted(RESUME, "top-1", FINISHED, check=check_result, name="finished"),
    accepted(RESUME, "top-1", unfinished, file("old/.result.json.1.unfinished", "x"), check=check_result),
    accepted(RESUME, "top-1", unfinished, file("old/metrics.csv", ""), check=check_result, name="metrics.csv is empty"),
    accepted(RESUME, "top-1", unfinished, remove("old/metrics.csv"), check=check_result, name="metrics.csv is missing"),
    rejected("compare --resume old", r"plan\.json", copy("comparison", "old"), remove("old/plan.json")),
    *(
        rejected(
            "compare --resume old",
            r"plan\.json|stud|seed|variant|recipe",
            copy("comparison", "old"),
            edit_json("old/plan.json", change),
            name=f"plan.json: {case}",
        )
        for case, change in {
            "a list": lambda c: [],
            "no recipe": lambda c: c.pop("recipe") and None,
            "recipe is a list": lambda c: c.update(recipe=[]),
            "no seeds": lambda c: c.pop("seeds") and None,
            "seeds are strings": lambda c: c.update(seeds=["x"]),
            "seeds empty": lambda c: c.update(seeds=[]),
            "an unknown study": lambda c: c.update(studies=["nonsense"]),
            "studies is a number": lambda c: c.update(studies=5),
            "an unknown variant": lambda c: c.update(variants=["nonsense"]),
            "for detection": lambda c: c["recipe"].update(task="detection"),
        }.items()
    ),
    *(
        rejected(
            "compare --resume old",
            r"plan\.json",
            copy("comparison", "old"),
            file("old/plan.json", content),
            name=f"plan.json: {case}",
        )
        for case, content in {"empty": "", "not UTF-8": b"\xff", "deeply nested": "[" * 100_000}.items()
    ),
    *(
        rejected(
            "compare --report r.json",
            r"r\.json",
            copy("comparison/results.json", "r.json"),
            *setup,
            name=f"results.json: {case}",
        )
        for case, setup in {
            "truncated": (truncate("r.json", 0.5),),
            "empty": (truncate("r.json", 0),),
            "deeply nested": (file("r.json", "[" * 100_000),),
            "no studies": (edit_json("r.json", lambda c: c.pop("studies") and None),),
            "studies is a number": (edit_json("r.json", lambda c: c.update(studies=5)),),
        }.items()
    ),
    rejected("compare nonsense", "nonsense"),
    rejected("compare scope,nonsense", "nonsense"),
    rejected("compare scope,scope", "scope"),
    rejected("compare ''", "stud"),
    rejected("compare scope nonsense", "nonsense"),
    rejected("compare scope --variants nonsense", "nonsense"),
    rejected("compare scope --seeds -1", "seed"),
    rejected("compare scope --seeds 0 0", "seed"),
    rejected("compare scope --seeds", "seed"),
    rejected("compare scope --seed 5", "seed"),
    rejected("compare scope --resume x", "resume"),
    rejected("compare --resume", "--resume"),
    rejected("compare --resume a b", "--resume|'b'"),
    rejected("compare scope --model-options scope 3 --seeds 0 --out new", "scope"),
    rejected("compare scope --data nowhere --out new", "nowhere"),
    rejected("compare scope --data {images} --out old", "old", file("old/mine.txt", "x")),
    rejected("compare scope --data {images} --out old", "resume", copy("comparison", "old")),
    accepted("compare --resume old", "comparison|top-1|scope", copy("comparison", "old")),
    accepted("compare --report {comparison}/results.json", "scope|3x3"),
]
