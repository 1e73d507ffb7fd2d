"""The studies: variants of a network, and the paper's accuracies for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from lambdanets.errors import check_choice
from lambdanets.inference.model_card import ModelOptions


@dataclass(frozen=True)
class Variant:
    """Options of the network, and its ImageNet top-1 in the paper, if reported.

    quoted: whether the paper quotes the number from another paper, which used another network and training.
    """

    options: ModelOptions
    paper_top1: float | None = None
    quoted: bool = False

    @property
    def name(self) -> str:
        """The options as text. Variants with equal options have equal names, so studies can share their runs."""
        mixer, *others = self.options.items()
        return " ".join([str(mixer[1]), *(f"{name}={value}" for name, value in others)])


@dataclass(frozen=True)
class Study:
    """A question, the variants by label, and the label of the baseline among them."""

    question: str
    baseline: str
    variants: dict[str, Variant]


def _lambda(paper_top1: float | None, **options: bool | int | float | str) -> Variant:
    return Variant({"mixer": "lambda", **options}, paper_top1)


def _baseline(mixer: str, paper_top1: float | None = None, *, quoted: bool = False) -> Variant:
    return Variant({"mixer": mixer}, paper_top1, quoted)


STUDIES = {
    "mixers": Study(
        "Which layer in place of the 3x3 convolution is most accurate? (Tables 3 and 4)",
        "convolution",
        {
            "convolution": _baseline("convolution", 76.9),
            "channel attention": _baseline("channel_attention", 77.6),
            "lambda": _lambda(78.4),
            "double attention": _baseline("double_attention", 77.0, quoted=True),
            "efficient attention": _baseline("efficient_attention", 77.3, quoted=True),
            "augmented attention": _baseline("augmented_attention", 77.7, quoted=True),
            "global attention": _baseline("global_attention"),
            "axial attention": _baseline("axial_attention", 77.5),
            "local attention": _baseline("local_attention", 77.4, quoted=True),
            "local relation": _baseline("local_relation", 77.3, quoted=True),
            "pairwise attention": _baseline("pairwise_attention"),
            "patchwise attention": _baseline("patchwise_attention", 78.2, quoted=True),
            "Performer, ReLU features": _baseline("performer_relu"),
            "Performer, softmax features": _baseline("performer_softmax"),
        },
    ),
    "performer": Study(
        "Are the Performer's random features more accurate than lambdas?",
        "lambda",
        {
            "lambda": _lambda(78.4),
            "lambda, content only": _lambda(68.8, position=False),
            "Performer, ReLU features": _baseline("performer_relu"),
            "Performer, softmax features": _baseline("performer_softmax"),
            "global attention": _baseline("global_attention"),
        },
    ),
    "content_position": Study(
        "What do content and position interactions contribute? (Table 9)",
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

# The network of the studies: a small ResNet for images of about 32 pixels, with mixers in the last two stages.
MODEL = "resnet20_mixer_small"
MODEL_OPTIONS: ModelOptions = {"pattern": "CCLL"}


def variant_labels(studies: Sequence[str]) -> list[str]:
    """Labels of the studies' variants. Raises InputError for an unknown study."""
    for study in studies:
        check_choice("studies", study, STUDIES)
    return list(dict.fromkeys(label for study in studies for label in STUDIES[study].variants))
