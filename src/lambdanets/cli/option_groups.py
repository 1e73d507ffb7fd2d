"""Group options by purpose in the help, and show defaults only where the help text does not explain them.

This replaces tyro's rule for dataclasses, which shows all options of a dataclass in one group, in field order.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import MISSING_NONPROP, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from lambdanets.cli.option_types import NONE, RULES
from lambdanets.training.recipe import TrainingRecipe

Groups = dict[str, tuple[str, ...]]  # name of a group -> its fields, in the order of the help

# Groups for the fields of all recipes; other options have a class variable GROUPS. Other names are ignored.
RECIPE_GROUPS: Groups = {
    "common": (
        *("data", "images", "validation_data", "validation_images", "model", "weights", "image_size", "epochs"),
        *("batch_size", "learning_rate", "patience", "workers"),
    ),
    "data": ("data_root", "validation_share", "hold_out", "training_images", "max_unreadable"),
    "model": ("model_options",),
    "optimization": (
        *("micro_batch", "warmup_epochs", "schedule", "decay", "decay_epochs", "optimizer", "momentum"),
        *("weight_decay", "clip_gradient", "ema_decay", "dice_weight"),
    ),
    "regularization": ("label_smoothing", "dropout", "drop_path"),
    "image": ("channels", "mean", "std", "crop_pct", "interpolation"),
    "augmentation": ("scale", "ratio", "crop_padding", "jitter", "flip", "rotate", "rand_augment"),
    "Mask R-CNN": (
        *("levels", "pyramid_channels", "anchor_scale", "aspect_ratios", "proposals", "sampled_regions", "max_objects"),
        *("box_layers", "mask_layers", "max_detections", "hide_padding"),
    ),
    "batch norm": ("batch_norm_momentum", "freeze_batch_norm", "sync_batch_norm"),
    "pseudo-label": ("pseudo_labels", "pseudo_images", "pseudo_ratio", "pseudo_targets"),
    "execution": ("precision", "compile", "seed", "checkpoint_every"),
}


class _Group:
    """Base class of the types that tyro gets for groups."""

    fields: tuple[StructFieldSpec, ...]


@RULES.struct_rule
def _struct_spec(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Return the constructor spec of a dataclass or a group, or None for other types."""
    if not isinstance(info.type, type):
        return None
    if issubclass(info.type, _Group):
        return StructConstructorSpec(dict, info.type.fields)
    if not dataclasses.is_dataclass(info.type):
        return None
    options: Any = info.type
    fields = _field_specs(options, info.default)
    groups = RECIPE_GROUPS if issubclass(options, TrainingRecipe) else getattr(options, "GROUPS", {})
    specs = []
    for group, names in groups.items():
        if members := tuple(fields.pop(name) for name in names if name in fields):
            kind: Any = type(group, (_Group,), {"fields": members})
            kind = Annotated[kind, tyro.conf.arg(name=group, prefix_name=False)]
            specs.append(StructFieldSpec(_key(group), kind, MISSING_NONPROP, ""))

    def instantiate(**values: Any) -> Any:
        grouped = [values.pop(_key(group), {}) for group in groups]
        return options(**values, **{name: value for group in grouped for name, value in group.items()})

    return StructConstructorSpec(instantiate, (*fields.values(), *specs))


def _key(group: str) -> str:
    return f"{group} options"  # cannot be the name of a field


def _field_specs(options: Any, default: Any) -> dict[str, StructFieldSpec]:
    """Map field names to specifications. default: an instance with the default values, or a marker of tyro."""
    types, texts = get_type_hints(options, include_extras=True), _help_texts(options)
    specs = {}
    for field in dataclasses.fields(options):
        value: Any = MISSING_NONPROP
        if isinstance(default, options):
            value = getattr(default, field.name)
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        text = texts.get(field.name, "")
        annotated = types[field.name]
        kind, *annotations = get_args(annotated) if get_origin(annotated) is Annotated else (annotated,)
        hint = tyro.conf.arg(help_behavior_hint=functools.partial(_default_hint, text))
        typ: Any = Annotated[(kind, hint, *annotations)]  # a hint in the annotations takes precedence
        specs[field.name] = StructFieldSpec(field.name, typ, value, text)
    return specs


def _default_hint(text: str, default: str) -> str:
    """Format the default value for the help; empty if it is none and the help text explains that."""
    if default in ("", *NONE):
        return "" if "default" in text or "if none" in text else "(default: none)"
    return f"(default: {default})"


@functools.cache
def _help_texts(options: type) -> dict[str, str]:
    """Map field names to their docstrings, which are the strings below the fields in the source code."""
    texts = {}
    for base in reversed(options.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except OSError:  # installed without source files
            continue
        definition: Any = ast.parse(source).body[0]
        for field, docstring in itertools.pairwise(definition.body):
            match field, docstring:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts
