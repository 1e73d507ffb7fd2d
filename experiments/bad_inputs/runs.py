"""Recipe files, run folders, and comparisons: damaged, of another kind, or without permission."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .inputs import Input, Make, accepted, refused
from .makers import copied, cut, edited, file, flipped, folder, forbidden, pipe, removed
from .options import TRAIN
from .places import SMALL

IMPORTS = (
    "from lambdanets.training.recipe import Recipe\nfrom lambdanets.training.detection.recipe import DetectionRecipe\n"
)
FILES = {
    "empty": ("", "recipe"),
    "a syntax error": ("recipe = (", "SyntaxError|never closed"),
    "an indentation error": ("  x = 1\n y = 2", "Indentation"),
    "no recipe": ("x = 1", "recipe = Recipe"),
    "None": ("recipe = None", "recipe = Recipe"),
    "an object": ("recipe = {'epochs': 1}", "recipe = Recipe"),
    "the class": ("recipe = Recipe", "recipe = Recipe"),
    "an unknown field": ("recipe = Recipe(epoch=1)", "epoch.*epochs"),
    "a value that does not fit": ("recipe = Recipe(epochs=0)", "epochs"),
    "a value of another type": ("recipe = Recipe(epochs='x')", "epochs"),
    "raises": ("raise ValueError('so it is')", "so it is"),
    "raises in two lines": ("raise ValueError('so\\nit is')", "so.*it is"),
    "raises with an escape sequence": ("raise ValueError('\\x1b[31mred')", "red"),
    "an import that is not there": ("import nonsense_that_is_not_there", "nonsense_that_is_not_there"),
    "exits": ("import sys; sys.exit(7)", "SystemExit|exit"),
    "exits with 0": ("import sys; sys.exit()", "SystemExit|exit"),
    "recurses": ("def f(): f()\nf()", "recursion"),
    "null bytes": ("x = 1\0", "null|source code"),
    "of detection": ("recipe = DetectionRecipe()", "detect train"),
}
ONE_SENTENCE = r"^lambdanets: (?!.{600})"

RECIPES: list[Input] = [
    *(
        refused(
            f"train r.py --run new {SMALL}",
            f"{ONE_SENTENCE}.*({says})",
            file("r.py", IMPORTS + text),
            name=f"recipe: {what}",
        )
        for what, (text, says) in FILES.items()
    ),
    refused("train r.py --run new", r"r\.py", file("r.py", b"\xff\xfe\x00"), name="a recipe that is no text"),
    refused("train r.py --run new", r"r\.py", folder("r.py"), name="a recipe that is a folder"),
    refused("train r.py --run new", r"r\.py", pipe("r.py"), name="a recipe that is a pipe"),
    refused("train nowhere.py --run new", r"nowhere\.py"),
    refused("train closed.py --run new", r"closed\.py", file("closed.py", "recipe = 1"), forbidden("closed.py")),
    refused(
        "detect train r.py --run new", "DetectionRecipe|lambdanets train", file("r.py", IMPORTS + "recipe = Recipe()")
    ),
    Input("train r.py --run new", 130, "", (file("r.py", "raise KeyboardInterrupt"),), name="a recipe that interrupts"),
    accepted(
        f"train r.py --run new --data {{images}} --model lambda_resnet20_small {SMALL}",
        "top-1",
        file("r.py", IMPORTS + "recipe = Recipe()"),
    ),
]

UNPRINTABLE = "class E(Exception):\n def __str__(self): raise RuntimeError('no')\nraise E()"
OLD = copied("run", "old")


def unfinished(here: Path, places: Mapping[str, Any]) -> None:
    """The folder `old` of a run with checkpoints but no result."""
    shutil.copytree(places["run"], here / "old")
    (here / "old/result.json").unlink()
    (here / "old/weights.safetensors").unlink()


RESUME, AGAIN = "train --resume old", TRAIN.replace("--run new", "--run old")
FIELDS: dict[str, Callable[[Any], Any]] = {
    "a list": lambda content: [],
    "an unknown field": lambda content: content.update(nonsense=1),
    "no data": lambda content: content.pop("data") and None,
    "no model": lambda content: content.pop("model") and None,
    "an unknown task": lambda content: content.update(task="poetry"),
    "a task is a list": lambda content: content.update(task=[]),
    "epochs is a string": lambda content: content.update(epochs="x"),
    "epochs 0": lambda content: content.update(epochs=0),
    "data is a number": lambda content: content.update(data=5),
    "other epochs": lambda content: content.update(epochs=5),
    "data that is gone": lambda content: content.update(data="/nowhere"),
}
BOTH = ("old/checkpoints/last.ckpt", "old/checkpoints/before.ckpt")


def last_alone(*make: Make) -> tuple[Make, ...]:
    """An unfinished run with one checkpoint, changed."""

    def remove_before(here: Path, places: Mapping[str, Any]) -> None:
        (here / BOTH[1]).unlink(missing_ok=True)

    return (unfinished, remove_before, *make)


def valid_result(here: Path) -> None:
    """Check that the run has a valid result.json."""
    assert 0 <= json.loads((here / "old/result.json").read_bytes())["top1"] <= 1


RUNS: list[Input] = [
    refused("train r.py --run new", "r.py", file("r.py", UNPRINTABLE), name="a recipe whose error cannot be printed"),
    *(
        refused(
            RESUME,
            r"recipe\.json|checkpoint|nowhere|last\.ckpt",
            *last_alone(edited("old/recipe.json", change)),
            name=f"recipe.json: {what}",
        )
        for what, change in FIELDS.items()
    ),
    *(
        refused(RESUME, r"recipe\.json", unfinished, file("old/recipe.json", content), name=f"recipe.json: {what}")
        for what, content in {"empty": "", "cut": '{"data": ', "not UTF-8": b"\xff", "deep": "[" * 100_000}.items()
    ),
    *(
        refused(RESUME, r"last\.ckpt", *last_alone(*make), name=f"last.ckpt: {what}")
        for what, make in {
            "empty": (cut(BOTH[0], 0),),
            "cut": (cut(BOTH[0], 0.5),),
            "a byte changed": (flipped(BOTH[0]),),
            "text": (file(BOTH[0], "x"),),
            "weights": (copied("run/weights.safetensors", BOTH[0]),),
        }.items()
    ),
    *(
        refused(RESUME, r"result\.json", OLD, file("old/result.json", content), name=f"result.json: {what}")
        for what, content in {"empty": "", "cut": '{"top1": ', "a list": "[]", "deep": "[" * 100_000}.items()
    ),
    refused(RESUME, r"result\.json", OLD, edited("old/result.json", lambda c: c.update(top1="x")), name="string top1"),
    refused(RESUME, r"result\.json", OLD, edited("old/result.json", lambda c: c.pop("data") and None), name="no data"),
    refused(RESUME, r"result\.json", OLD, removed("old/result.json"), folder("old/result.json"), leaves="old/.*"),
    refused(RESUME, "recipe.json", folder("old"), name="an empty folder"),
    refused("train --resume {detector}", "detect train --resume"),
    refused("detect train --resume {run}", "lambdanets train --resume"),
    refused(f"{AGAIN} --seed 5", "seed", OLD, name="another seed"),
    refused(f"{AGAIN} --learning-rate 0.5", "learning_rate", unfinished, name="another learning rate"),
    refused(AGAIN, "detection", copied("detector", "old"), name="a run of detection"),
    refused(AGAIN, "old", file("old/mine.txt", "x"), name="a folder with something else"),
    refused(AGAIN, "old", file("old", "x"), name="a file"),
    refused(AGAIN, "recipe.json", OLD, file("old/recipe.json", "{"), name="a damaged recipe.json"),
    refused(AGAIN, "old", folder("old"), forbidden("old", 0o500), name="a folder that may not be written to"),
    refused(RESUME, "old", unfinished, forbidden("old", 0o500), name="a run that may not be written to"),
    accepted(RESUME, "top-1", unfinished, check=valid_result, name="no result"),
    accepted(RESUME, "top-1", OLD, check=valid_result, name="finished"),
    accepted(RESUME, "top-1", unfinished, file("old/.result.json.1.unfinished", "x"), check=valid_result),
    accepted(RESUME, "top-1", unfinished, file("old/metrics.csv", ""), check=valid_result, name="metrics.csv empty"),
    accepted(RESUME, "top-1", unfinished, removed("old/metrics.csv"), check=valid_result, name="metrics.csv gone"),
    refused("compare --resume old", r"plan\.json", copied("comparison", "old"), removed("old/plan.json")),
    *(
        refused(
            "compare --resume old",
            r"plan\.json|stud|seed|variant|recipe",
            copied("comparison", "old"),
            edited("old/plan.json", change),
            name=f"plan.json: {what}",
        )
        for what, change in {
            "a list": lambda c: [],
            "no recipe": lambda c: c.pop("recipe") and None,
            "recipe is a list": lambda c: c.update(recipe=[]),
            "no seeds": lambda c: c.pop("seeds") and None,
            "seeds are strings": lambda c: c.update(seeds=["x"]),
            "seeds empty": lambda c: c.update(seeds=[]),
            "an unknown study": lambda c: c.update(studies=["nonsense"]),
            "studies is a number": lambda c: c.update(studies=5),
            "an unknown variant": lambda c: c.update(variants=["nonsense"]),
            "of detection": lambda c: c["recipe"].update(task="detection"),
        }.items()
    ),
    *(
        refused(
            "compare --resume old",
            r"plan\.json",
            copied("comparison", "old"),
            file("old/plan.json", content),
            name=f"plan.json: {what}",
        )
        for what, content in {"empty": "", "not UTF-8": b"\xff", "deep": "[" * 100_000}.items()
    ),
    *(
        refused(
            "compare --report r.json",
            r"r\.json",
            copied("comparison/results.json", "r.json"),
            *make,
            name=f"results.json: {what}",
        )
        for what, make in {
            "cut": (cut("r.json", 0.5),),
            "empty": (cut("r.json", 0),),
            "deep": (file("r.json", "[" * 100_000),),
            "no studies": (edited("r.json", lambda c: c.pop("studies") and None),),
            "studies is a number": (edited("r.json", lambda c: c.update(studies=5)),),
        }.items()
    ),
    refused("compare nonsense", "nonsense"),
    refused("compare scope,nonsense", "nonsense"),
    refused("compare scope,scope", "scope"),
    refused("compare ''", "stud"),
    refused("compare scope nonsense", "nonsense"),
    refused("compare scope --variants nonsense", "nonsense"),
    refused("compare scope --seeds -1", "seed"),
    refused("compare scope --seeds 0 0", "seed"),
    refused("compare scope --seeds", "seed"),
    refused("compare scope --seed 5", "seed"),
    refused("compare scope --resume x", "resume"),
    refused("compare --resume", "--resume"),
    refused("compare --resume a b", "--resume|'b'"),
    refused("compare scope --model-options scope 3 --seeds 0 --out new", "scope"),
    refused("compare scope --data nowhere --out new", "nowhere"),
    refused("compare scope --data {images} --out old", "old", file("old/mine.txt", "x")),
    refused("compare scope --data {images} --out old", "resume", copied("comparison", "old")),
    accepted("compare --resume old", "comparison|top-1|scope", copied("comparison", "old")),
    accepted("compare --report {comparison}/results.json", "scope|3x3"),
]
