"""Invalid and unusual inputs of the command, in groups, for `experiments/bad_inputs.py`."""

from .archives import ARCHIVES
from .attempts import attempt
from .coco import ANNOTATIONS
from .images import IMAGES
from .inputs import Input
from .labels import LABEL_INPUTS
from .options import OPTIONS
from .paths import PATHS
from .places import Places
from .processes import PROCESSES
from .runs import RECIPES, RUNS
from .shards import SHARD_SETS, URLS
from .tools import TOOLS
from .weights import WEIGHTS

__all__ = ["GROUPS", "Input", "Places", "attempt"]

GROUPS: dict[str, list[Input]] = {
    "options": OPTIONS,
    "paths": PATHS,
    "images": IMAGES,
    "archives": ARCHIVES,
    "shards": SHARD_SETS,
    "urls": URLS,
    "detection": ANNOTATIONS,
    "weights": WEIGHTS,
    "recipes": RECIPES,
    "runs": RUNS,
    "labels": LABEL_INPUTS,
    "tools": TOOLS,
    "processes": PROCESSES,
}
