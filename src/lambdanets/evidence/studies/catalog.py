"""Which variants a comparison trains, and which table of the paper each of them answers to."""

from collections.abc import Sequence
from dataclasses import dataclass

from lambdanets.errors import InputError, nearest
from lambdanets.training.recipe import ModelOptions


@dataclass(frozen=True)
class Variant:
    """Options of the network, and the top-1 that the paper prints for it on ImageNet, if it does.

    quoted: the paper took that number from another, whose network and training were its own.
    """

    options: ModelOptions
    printed: float | None = None
    quoted: bool = False

    @property
    def name(self) -> str:
        """The options in words: of equal options it is the same, and so they are trained once for all studies."""
        mixer, *others = self.options.items()
        return " ".join([str(mixer[1]), *(f"{name}={value}" for name, value in others)])


@dataclass(frozen=True)
class Study:
    """A question, and the variants whose accuracies answer it; the others are compared with the baseline."""

    question: str
    baseline: str
    variants: dict[str, Variant]


def _lambda(printed: float | None, **options: bool | int | float | str) -> Variant:
    return Variant({"mixer": "lambda", **options}, printed)


def _rival(mixer: str, printed: float | None = None, *, quoted: bool = False) -> Variant:
    return Variant({"mixer": mixer}, printed, quoted)


STUDIES = {
    "mixers": Study(
        "Which layer in the place of the 3x3 convolution learns most from the same images? (Tables 3 and 4)",
        "convolution",
        {
            "convolution": _rival("convolution", 76.9),
            "channel attention": _rival("channel_attention", 77.6),
            "lambda": _lambda(78.4),
            "double attention": _rival("double_attention", 77.0, quoted=True),
            "efficient attention": _rival("efficient_attention", 77.3, quoted=True),
            "augmented attention": _rival("augmented_attention", 77.7, quoted=True),
            "global attention": _rival("global_attention"),
            "axial attention": _rival("axial_attention", 77.5),
            "local attention": _rival("local_attention", 77.4, quoted=True),
            "local relation": _rival("local_relation", 77.3, quoted=True),
            "pairwise attention": _rival("pairwise_attention"),
            "patchwise attention": _rival("patchwise_attention", 78.2, quoted=True),
            "Performer, ReLU features": _rival("performer_relu"),
            "Performer, softmax features": _rival("performer_softmax"),
        },
    ),
    "performer": Study(
        "Do the Performer's random features learn more than lambdas?",
        "lambda",
        {
            "lambda": _lambda(78.4),
            "lambda, content only": _lambda(68.8, position=False),
            "Performer, ReLU features": _rival("performer_relu"),
            "Performer, softmax features": _rival("performer_softmax"),
            "global attention": _rival("global_attention"),
        },
    ),
    "content_position": Study(
        "What do content and position interactions each give? (Table 9)",
        "content and position",
        {
            "content and position": _lambda(78.4),
            "position only": _lambda(78.1, content=False),
            "content only": _lambda(68.8, position=False),
        },
    ),
    "scope": Study(
        "How far must position interactions reach? (Table 10)",
        "15x15",
        {
            "3x3": _lambda(77.6, scope=3),
            "7x7": _lambda(78.2, scope=7),
            "15x15": _lambda(78.5, scope=15),
            "23x23": _lambda(78.3, scope=23),
            "31x31": _lambda(78.5, scope=31),
        },
    ),
    "normalization": Study(
        "How should keys, queries and values be normalized? (Table 11)",
        "softmax on keys",
        {
            "softmax on keys": _lambda(78.4),
            "softmax on keys and queries": _lambda(78.1, normalize_queries="softmax"),
            "L2 on keys": _lambda(78.0, normalize_keys="l2"),
            "none on keys": _lambda(70.0, normalize_keys="none"),
            "no batch norm": _lambda(76.2, batch_norm=False),
        },
    ),
}

# A quarter of ResNet's width for images of about 32 pixels, with mixers from half of its resolution on.
MODEL = "resnet20_mixer_small"
MODEL_OPTIONS: ModelOptions = {"pattern": "CCLL"}


def labels_of(studies: Sequence[str]) -> list[str]:
    """The variants of some studies. Raises InputError for a study that does not exist."""
    for study in studies:
        if study not in STUDIES:
            raise InputError(f"there is no study {study!r}, only {', '.join(STUDIES)}{nearest(study, STUDIES)}")
    return list(dict.fromkeys(label for study in studies for label in STUDIES[study].variants))
