"""Which variants a comparison trains, and which table of the paper each of them answers to."""

from dataclasses import dataclass

Options = dict[str, bool | int | float | str | None]


@dataclass(frozen=True)
class Variant:
    """Options of the network, and the top-1 that the paper prints for it on ImageNet, if it does."""

    options: Options
    printed: float | None = None


@dataclass(frozen=True)
class Study:
    """A question, and the variants whose accuracies answer it."""

    question: str
    variants: dict[str, Variant]


def _lambda(**options: bool | int | float | str | None) -> Options:
    return {"mixer": "lambda", **options}


# Table 3 cites numbers of other papers, each with a training of its own; only its first two rows and its last are
# trained alike.
STUDIES = {
    "mixers": Study(
        "Which mixer in place of the 3x3 convolution learns most from the same images? (Tables 3 and 4)",
        {
            "convolution": Variant({"mixer": "convolution"}, 76.9),
            "channel_attention": Variant({"mixer": "channel_attention"}, 77.6),
            "lambda": Variant(_lambda(), 78.4),
            "double_attention": Variant({"mixer": "double_attention"}, 77.0),
            "efficient_attention": Variant({"mixer": "efficient_attention"}, 77.3),
            "augmented_attention": Variant({"mixer": "augmented_attention"}, 77.7),
            "global_attention": Variant({"mixer": "global_attention"}),
            "axial_attention": Variant({"mixer": "axial_attention"}, 77.5),
            "local_attention": Variant({"mixer": "local_attention"}, 77.4),
            "local_relation": Variant({"mixer": "local_relation"}, 77.3),
            "pairwise_attention": Variant({"mixer": "pairwise_attention"}),
            "patchwise_attention": Variant({"mixer": "patchwise_attention"}, 78.2),
            "performer_relu": Variant({"mixer": "performer_relu"}),
            "performer_softmax": Variant({"mixer": "performer_softmax"}),
        },
    ),
    "performer": Study(
        "Do the Performer's random features, without relative positions, do better than lambdas?",
        {
            "lambda": Variant(_lambda(), 78.4),
            "lambda_content_only": Variant(_lambda(position=False), 68.8),
            "performer_relu": Variant({"mixer": "performer_relu"}),
            "performer_softmax": Variant({"mixer": "performer_softmax"}),
            "global_attention": Variant({"mixer": "global_attention"}),
        },
    ),
    "content_position": Study(
        "What do content and position interactions each give? (Table 9)",
        {
            "content_and_position": Variant(_lambda(), 78.4),
            "position_only": Variant(_lambda(content=False), 78.1),
            "content_only": Variant(_lambda(position=False), 68.8),
        },
    ),
    "scope": Study(
        "How far must position interactions reach? (Table 10)",
        {
            "3x3": Variant(_lambda(scope=3), 77.6),
            "7x7": Variant(_lambda(scope=7), 78.2),
            "15x15": Variant(_lambda(scope=15), 78.5),
            "23x23": Variant(_lambda(scope=23), 78.3),
            "31x31": Variant(_lambda(scope=31), 78.5),
        },
    ),
    "normalization": Study(
        "How should keys, queries and values be normalized? (Table 11)",
        {
            "softmax_on_keys": Variant(_lambda(), 78.4),
            "softmax_on_keys_and_queries": Variant(_lambda(normalize_queries="softmax"), 78.1),
            "l2_on_keys": Variant(_lambda(normalize_keys="l2"), 78.0),
            "no_key_normalization": Variant(_lambda(normalize_keys=None), 70.0),
            "no_batch_norm": Variant(_lambda(batch_norm=False), 76.2),
        },
    ),
}

# A quarter of ResNet's width for images of about 32 pixels, mixers at up to its full resolution.
MODEL = "resnet20_mixer_small"
MODEL_OPTIONS: Options = {"pattern": "CLLL"}
