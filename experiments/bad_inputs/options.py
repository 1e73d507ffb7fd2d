"""Arguments and options: unknown, misspelled, missing, of a wrong type, out of range, or without a required other."""

from .inputs import Input, accepted, refused
from .makers import folder
from .places import SMALL

TRAIN = f"train --data {{images}} {SMALL} --run new"

# Fields of a recipe with invalid values, as on the command line.
FIELDS = {
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
DETECTION_FIELDS = {
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
    "detections": ["=0"],
    "compile": ["=True"],
}


def in_words(field: str) -> str:
    """A regular expression for a field's name as an option or recipe field."""
    return field.replace("-", "[-_ ]")


COMMANDS: list[Input] = [
    accepted("", "usage: lambdanets"),
    accepted("--help", "usage: lambdanets"),
    accepted("--version", r"lambdanets \d"),
    refused("''", "command"),
    refused("trian", "trian.*train"),
    refused("--verison", "--verison"),
    refused("TRAIN", "TRAIN"),
    refused("'train '", "train"),
    refused("-x", "-x"),
    refused("détecter", "détecter"),
    *(accepted(f"{command} --help", "usage: ") for command in ("train", "predict", "shard", "detect", "compare scope")),
    *(accepted(command, "usage: ") for command in ("benchmark", "compare", "detect")),
    refused("train nonsense", "nonsense"),
    refused("train digitz", "digitz.*digits"),
    refused("train digits extra", "extra"),
    refused("train --epoch 3", "--epoch.*--epochs"),
    refused("train --epochs", "--epochs"),
    refused("train --epochs 3 4", "4"),
    refused("train --nonsense", "--nonsense"),
    refused("train --no-epochs", "--no-epochs"),
    refused("train -e 3", "-e"),
    refused("train --epochs --batch-size 4", "--epochs"),
    refused("train --resume nowhere --epochs 3", "resume"),
    refused("train digits --resume nowhere", "resume"),
    refused("train --resume nowhere", "nowhere"),
    refused("train --resume ''", r"resume|''|\. must be a run folder"),
    refused("train --plan --run new", "plan"),
    refused("train --plan --quicktest", "plan"),
    refused("train --quicktest --run old", "old", folder("old")),
    refused(f"{TRAIN} --model nonsense", "nonsense"),
    refused(f"{TRAIN} --model ''", "model"),
    refused(f"{TRAIN} --model lambda_resnet5O", "lambda_resnet50"),
    refused(f"{TRAIN} --model-options scope", "model[-_]options"),
    refused(f"{TRAIN} --model-options nonsense 1", "nonsense"),
    refused(f"{TRAIN} --model-options scope x", "scope|x"),
    refused(f"{TRAIN} --model-options scope 4", "scope"),
    refused(f"{TRAIN} --model-options num_classes 3", "num_classes"),
    refused(f"{TRAIN} --model-options pretrained True", "pretrained"),
    refused(f"{TRAIN} --model-options checkpoint_path evil.pth", "checkpoint_path|evil"),
    refused(f"{TRAIN} --model resnet10t --model-options checkpoint_path nowhere.pth", "checkpoint_path|nowhere"),
    refused(f"{TRAIN} --pseudo-labels labels", "pseudo[-_]labels"),
    refused(f"{TRAIN} --pseudo-images images", "pseudo[-_]images"),
    refused(f"{TRAIN} --pseudo-labels nowhere --pseudo-images {{shards}}", "nowhere"),
    refused(f"{TRAIN} --data-root nowhere", "data[-_]root"),
    refused(f"{TRAIN} --compile=perhaps", "compile|perhaps"),
    *(refused(f"{TRAIN} --devices {value}", "devices") for value in ("0", "-1", "x", "1.5")),
    accepted(f"{TRAIN} --epochs 2 --epochs 1", "1 epochs", name="an option twice"),
    accepted(f"{TRAIN} --label-smoothing 0 --dropout 0.999 --flip 1", "top-1"),
    accepted(f"{TRAIN} --learning-rate 0", "top-1"),
    accepted(f"{TRAIN} --batch-size 1000", "top-1", name="a batch larger than the set"),
    accepted(f"{TRAIN} --warmup-epochs 50", "top-1", name="a warm-up longer than training"),
    refused(f"{TRAIN} --learning-rate 1e300", "nan|finite|NaN|inf", leaves=r"new(/.*)?", lines="."),
]

OPTIONS = [
    *COMMANDS,
    *(refused(f"{TRAIN} --{field}{value}", in_words(field)) for field, values in FIELDS.items() for value in values),
    *(
        refused(f"detect train --epochs 1 --run new --{field}{value}", in_words(field))
        for field, values in DETECTION_FIELDS.items()
        for value in values
    ),
]
