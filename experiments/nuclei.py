"""Mask R-CNN on cell nuclei: a small LambdaResNet and its convolution baseline, with the same recipe and seeds.

    python experiments/nuclei.py NUCLEI --work FOLDER [--seeds 0 1 2] [--jobs 2]    train two runs per seed
    python experiments/nuclei.py [--page docs/detection_results.md]                 write the page

NUCLEI has instances_train.json, train.tar, instances_val.json and val.tar. Each run uses the command on the page and
writes into FOLDER. After an interruption, run the script again to resume. The results file keeps the results of other
seeds. With --jobs 2, set OMP_NUM_THREADS to half the number of cores.
"""

from pathlib import Path
from typing import Any

from pages import RESULTS, replace_section
from seeded_runs import SeededRuns, conditions, seeds, stored_runs, train_missing

from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.seeds import paired_rows, scores_by_seed

OUT = RESULTS / "epyc-2-cores/nuclei.json"
RECIPES = {"nuclei": "lambda layers", "nuclei_convolution": "3x3 convolutions"}
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")
IOU_TYPES = {"bbox": "boxes", "segm": "masks"}
RESULT_FIELDS = ("images_per_second", "images", *IOU_TYPES)


def command(recipe: str, seed: int, data: Path) -> list[str]:
    return [
        *("train", recipe, "--seed", str(seed)),
        *("--data", str(data / "instances_train.json"), "--images", str(data / "train.tar")),
        *("--validation-data", str(data / "instances_val.json"), "--validation-images", str(data / "val.tar")),
    ]


def section(runs: list[dict[str, Any]]) -> str:
    first = runs[0]
    shown = " ".join([*command("nuclei", 0, Path("NUCLEI")), "--run", "runs/nuclei"])
    for option in (" --data", " --validation-data"):
        shown = shown.replace(option, f" \\\n     {option}")
    rows = []
    for iou_type, label in IOU_TYPES.items():
        scores = {}
        for recipe, layers in RECIPES.items():
            parameters = next(run["parameters"] for run in runs if run["recipe"] == recipe)
            name = f"{label}, {layers}, {parameters / 1e6:.2f} M parameters"
            scores[name] = [scores_by_seed(runs, {"recipe": recipe}, iou_type, column) for column in COLUMNS]
        rows += paired_rows(scores, f"{label}, paired difference, 95% interval")
    return (
        f"{first['training_images']} training images, {first['images']} validation images, {conditions(runs)}; "
        f"{seeds(runs)}, in percent, of the last epoch's EMA weights.\n\n    lambdanets {shown}\n\n"
        f"{markdown_table(['', *COLUMNS], *rows)}\n"
    )


def main() -> None:
    options = SeededRuns(__doc__, "detection_results.md").parse_options()
    out = options.out or OUT
    if options.data is not None:
        train_missing(
            options,
            out,
            "{recipe}-seed{seed}",
            [{"recipe": recipe, "seed": seed} for seed in options.seeds for recipe in RECIPES],
            lambda **key: command(**key, data=options.data),
            lambda run, result: {name: result[name] for name in RESULT_FIELDS},
        )
    replace_section(options.page, "nuclei", section(stored_runs(out)))


if __name__ == "__main__":
    main()
