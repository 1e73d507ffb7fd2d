"""Invalid and unusual inputs of `lambdanets`, in groups; `experiments/bad_inputs.py` runs them."""

from .archives import ARCHIVES
from .coco import ANNOTATIONS
from .deployment import DEPLOYMENT
from .fixtures import Fixtures
from .images import IMAGES
from .inputs import Input
from .labels import LABEL_INPUTS
from .options import OPTIONS
from .paths import PATHS
from .processes import PROCESSES
from .running import run_input
from .runs import RECIPES, RUNS
from .shards import SHARD_SETS, URLS
from .tools import TOOLS
from .weights import WEIGHTS

__all__ = ["GROUPS", "Fixtures", "Input", "run_input"]

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
    "deployment": DEPLOYMENT,
    "processes": PROCESSES,
}
