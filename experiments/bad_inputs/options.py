"""Arguments and options: unknown, misspelled, missing, of the wrong type, out of range, or in conflict."""

from .files import folder
from .fixtures import SMALL_RECIPE
from .inputs import Input, accepted, rejected

TRAIN = f"train --data {{images}} {SMALL_RECIPE} --run new"

# Invalid values of recipe fields, as written after the option.
INVALID_FIELDS = {
    "epochs": ["=0", "=-1", "=1.5", "=x", "=''", "=99999999999999999999"],
    "batch-size": ["=0", "=1", "=-3", "=x", "=1000000000000"],
    "micro-batch": ["=0", "=1", "=x"],
    "learning-rate": ["=-1", "=nan", "=inf", "=x", "=''"],
    "optimizer": ["=adam", "=''"],
    "schedule": ["=linear"],
    "decay": ["=0", "=2", "=nan"],
    "decay-epochs": ["=0", "=-1"],
    "momentum": ["=1", "=-0.1", "=nan"],
    "weight-decay": ["=-1", "=inf"],
    "warmup-epochs": ["=-1", "=nan"],
    "clip-gradient": ["=0", "=-1", "=nan"],
    "ema-decay": ["=1", "=-0.5", "=nan"],
    "precision": ["=64", "=float16"],
    "seed": ["=-1", "=x", "=1.5", "=99999999999999999999999"],
    "workers": ["=-1", "=x"],
    "checkpoint-every": ["=0", "=-5", "=nan"],
    "max-unreadable": ["=-1", "=x"],
    "batch-norm-momentum": ["=0", "=1.5", "=nan"],
    "freeze-batch-norm": ["=1", "=-0.1"],
    "validation-share": ["=0", "=1", "=-0.5", "=2", "=nan", "=0.99999", "=1e-9"],
    "hold-out": ["=1", "=-0.1", "=nan"],
    "patience": ["=0", "=-1", "=x"],
    "training-images": ["=0", "=-1", "=1", "=100000"],
    "pseudo-ratio": ["=0", "=-1", "=nan"],
    "pseudo-targets": ["=medium"],
    "drop-path": ["=-0.1", "=1.5", "=nan"],
    "dropout": ["=-0.1", "=1.5", "=x"],
    "image-size": ["=0", "=-8", "=1", "=3", "=x", "=100000000"],
    "channels": ["=0", "=2", "=4", "=x"],
    "mean": ["=nan", "=x", " 1 2"],
    "std": ["=0", "=-1", "=nan", " 1 2"],
    "scale": [" 0 1", " 0.9 0.1", " 0.5 2", " nan 1", "=0.5"],
    "ratio": [" 0 1", " 2 1", " 1 inf"],
    "crop-pct": ["=0", "=2", "=nan"],
    "flip": ["=-1", "=2", "=nan"],
    "rand-augment": ["=rand-m999-n2", "=''", "=nonsense", "=rand-m10-n99"],
    "interpolation": ["=nearest"],
    "label-smoothing": ["=-1", "=2", "=nan"],
}
INVALID_DETECTION_FIELDS = {
    "image-size": ["=0", "=-1", "=x"],
    "jitter": [" 0 1", " 2 1", " nan 1", "=1"],
    "flip": ["=2"],
    "max-objects": ["=0"],
    "mean": [" 1 2", " nan nan nan"],
    "std": [" 0 0 0"],
    "levels": [" ", "=x", "=9", "=-1"],
    "pyramid-channels": ["=0"],
    "box-layers": [" -1 8", " 1 0", "=1"],
    "mask-layers": ["=-1"],
    "anchor-scale": ["=0", "=nan"],
    "aspect-ratios": ["=0", "=-1"],
    "proposals": ["=0"],
    "sampled-regions": ["=0"],
    "max_detections": ["=0"],
    "compile": ["=True"],
}


def field_pattern(field: str) -> str:
    """A regular expression for the field's name, written as an option or as a recipe field."""
    return field.replace("-", "[-_ ]")


COMMANDS: list[Input] = [
    accepted("", "usage: lambdanets"),
    accepted("--help", "usage: lambdanets"),
    accepted("--version", r"lambdanets \d"),
    rejected("''", "command"),
    rejected("trian", "trian.*train"),
    rejected("--verison", "--verison"),
    rejected("TRAIN", "TRAIN"),
    rejected("'train '", "train"),
    rejected("-x", "-x"),
    rejected("détecter", "détecter"),
    *(accepted(f"{command} --help", "usage: ") for command in ("train", "predict", "shard", "detect", "compare scope")),
    *(accepted(command, "usage: ") for command in ("benchmark", "compare", "detect")),
    rejected("train nonsense", "nonsense"),
    rejected("train digitz", "digitz.*digits"),
    rejected("train digits extra", "extra"),
    rejected("train --epoch 3", "--epoch.*--epochs"),
    rejected("train --epochs", "--epochs"),
    rejected("train --epochs 3 4", "4"),
    rejected("train --nonsense", "--nonsense"),
    rejected("train --no-epochs", "--no-epochs"),
    rejected("train -e 3", "-e"),
    rejected("train --epochs --batch-size 4", "--epochs"),
    rejected("train --resume nowhere --epochs 3", "resume"),
    rejected("train digits --resume nowhere", "resume"),
    rejected("train --resume nowhere", "nowhere"),
    rejected("train --resume ''", r"resume|''|\. must be a run folder"),
    rejected("train --plan --run new", "plan"),
    rejected("train --plan --quicktest", "plan"),
    rejected("train --quicktest --run old", "old", folder("old")),
    rejected(f"{TRAIN} --model nonsense", "nonsense"),
    rejected(f"{TRAIN} --model ''", "model"),
    rejected(f"{TRAIN} --model lambda_resnet5O", "lambda_resnet50"),
    rejected(f"{TRAIN} --model-options scope", "model[-_]options"),
    rejected(f"{TRAIN} --model-options nonsense 1", "nonsense"),
    rejected(f"{TRAIN} --model-options scope x", "scope|x"),
    rejected(f"{TRAIN} --model-options scope 4", "scope"),
    rejected(f"{TRAIN} --model-options num_classes 3", "num_classes"),
    rejected(f"{TRAIN} --model-options pretrained True", "pretrained"),
    rejected(f"{TRAIN} --model-options checkpoint_path evil.pth", "checkpoint_path|evil"),
    rejected(f"{TRAIN} --model resnet10t --model-options checkpoint_path nowhere.pth", "checkpoint_path|nowhere"),
    rejected(f"{TRAIN} --pseudo-labels labels", "pseudo[-_]labels"),
    rejected(f"{TRAIN} --pseudo-images images", "pseudo[-_]images"),
    rejected(f"{TRAIN} --pseudo-labels nowhere --pseudo-images {{shards}}", "nowhere"),
    rejected(f"{TRAIN} --data-root nowhere", "data[-_]root"),
    rejected(f"{TRAIN} --compile=perhaps", "compile|perhaps"),
    *(rejected(f"{TRAIN} --devices {value}", "devices") for value in ("0", "-1", "x", "1.5")),
    accepted(f"{TRAIN} --epochs 2 --epochs 1", "1 epochs", name="a repeated option"),
    accepted(f"{TRAIN} --label-smoothing 0 --dropout 0.999 --flip 1", "top-1"),
    accepted(f"{TRAIN} --learning-rate 0", "top-1"),
    accepted(f"{TRAIN} --batch-size 1000", "top-1", name="a batch larger than the dataset"),
    accepted(f"{TRAIN} --warmup-epochs 50", "top-1", name="a warm-up longer than training"),
    rejected(f"{TRAIN} --learning-rate 1e300", "nan|finite|NaN|inf", allowed_files=r"new(/.*)?", allowed_lines="."),
]

OPTIONS = [
    *COMMANDS,
    *(
        rejected(f"{TRAIN} --{field}{value}", field_pattern(field))
        for field, values in INVALID_FIELDS.items()
        for value in values
    ),
    *(
        rejected(f"detect train --epochs 1 --run new --{field}{value}", field_pattern(field))
        for field, values in INVALID_DETECTION_FIELDS.items()
        for value in values
    ),
]
