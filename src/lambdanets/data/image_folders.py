"""Finds the splits and the classes of images from the names of the folders in which they are."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePath
from typing import Any, NamedTuple

from lambdanets.data.image_search import describe_left_out
from lambdanets.data.labeled_images import LabeledImages
from lambdanets.errors import InputError, first_few
from lambdanets.files import nfc

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_ROLES = {
    TRAIN: "train(?:ing|val)?|trn",
    VALIDATION: "val|valid|validate|validation|dev|devel|development",
    TEST: "test(?:ing)?|tst|eval|evaluation|holdout|heldout",
}
_NEUTRAL = "(?:sets?|splits?|data|datasets?|images?|imgs?|pictures?|photos?|samples?|folders?|jpe?g|png)"
_WORD = re.compile(
    "|".join(f"(?P<{role}>{_NEUTRAL}?(?:{words}){_NEUTRAL}?)" for role, words in _ROLES.items())
    + f"|(?P<neutral>{_NEUTRAL}+)"
)

_Splits = tuple["_Folder", "_Folder | None"]  # for training and validation
MakeImages = Callable[[list[Any], list[int]], LabeledImages]  # of images and their labels


class Name(NamedTuple):
    """The words of a name. role: TRAIN, VALIDATION, TEST, or "". rest: words that say nothing about a split."""

    role: str
    rest: tuple[str, ...]


@dataclass(frozen=True)
class ImageSet:
    """Images with class names. source: for messages. left_out: number of files that are not used, by reason."""

    images: LabeledImages
    classes: tuple[str, ...]
    source: str
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Folder:
    """A folder that has images in it or below. images: number, in order, and image. path: its path in the data set."""

    path: tuple[str, ...] = ()
    images: list[tuple[int, Any]] = field(default_factory=list)
    folders: "dict[str, _Folder]" = field(default_factory=dict)

    def walk(self) -> "Iterator[_Folder]":
        yield self
        for folder in self.folders.values():
            yield from folder.walk()

    def all(self) -> list[tuple[int, Any]]:
        return sorted((image for folder in self.walk() for image in folder.images), key=lambda image: image[0])

    def below(self, path: Iterable[str]) -> "_Folder":
        """Return the folder at a path below this one, which is created if it is missing."""
        folder = self
        for name in path:
            folder = folder.folders.setdefault(name, _Folder((*folder.path, name)))
        return folder


def parse_name(name: str) -> Name:
    """Find the name of a split in a name such as "Training", "seg_train", "testSet" or "val2017"."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    matches = [(word.lower(), _WORD.fullmatch(word.lower())) for word in words]
    roles = {match.lastgroup or "" for _, match in matches if match is not None} - {"neutral"}
    if roles == {TRAIN, VALIDATION}:  # such as train_val
        roles = {TRAIN}
    return Name(roles.pop() if len(roles) == 1 else "", tuple(word for word, match in matches if match is None))


def find_splits(
    source: str, images: Iterable[tuple[PurePath, Any]], left_out: Counter[str], make_images: MakeImages
) -> tuple[ImageSet, ImageSet | None]:
    """Find the training and the validation set of a data set from the paths of its images.

    source: the data set, for messages. images: path in the data set, and image.
    left_out: number of files that are left out already, by reason. make_images: called with images and their labels.

    A folder that contains only one folder is skipped. Then its folders are splits (see `parse_name`) of class folders,
    or class folders with a folder for each split, or class folders with images anywhere in them. A training and a
    validation split are used; a test split is the validation split if there is no other. A split without class folders
    is left out, unless it is for training.

    Raises InputError if there are no images in class folders, and for folders that may be splits or classes.
    """
    root = _Folder()
    for number, (path, image) in enumerate(images):
        root.below(map(nfc, path.parts[:-1])).images.append((number, image))
    num_images, root = len(root.all()), _enter(root)
    if not root.folders:
        got = "images outside class folders" if num_images else f"no images ({describe_left_out(left_out)})"
        raise InputError(f"'{source}' must have one sub-folder of images per class, got {got}")
    unused = Counter[str]()
    folders = _find_splits(root, source, unused) or _find_splits_in_classes(root, source, unused) or (root, None)
    _check_classes(folders[0], source)
    train, validation = (None if folder is None else _make_set(folder, source, make_images) for folder in folders)
    assert train is not None
    num_used = len(train.images) + (0 if validation is None else len(validation.images))
    outside = Counter({"outside class folders": num_images - num_used - unused.total()})
    return replace(train, left_out=left_out + unused + outside), validation


def _enter(folder: _Folder) -> _Folder:
    """Return the folder that has class folders or splits: this one, or the only one in it, and so on."""
    while len(folder.folders) == 1:
        (only,) = folder.folders.values()
        if len(only.folders) < (2 if only.images else 1):
            break
        folder = only
    return folder


def _families(folder: _Folder) -> dict[tuple[str, ...], dict[str, list[str]]]:
    """Return the folders with names of splits by role, for each combination of other words in their names."""
    families: defaultdict[tuple[str, ...], defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in folder.folders:
        role, rest = parse_name(name)
        if role:
            families[rest][role].append(name)
    return {rest: dict(family) for rest, family in families.items()}


def _is_complete(family: Mapping[str, list[str]]) -> bool:
    return TRAIN in family and len(family) > 1


def _has_splits(folder: _Folder) -> bool:
    return any(map(_is_complete, _families(folder).values()))


def _find_splits(root: _Folder, source: str, left_out: Counter[str]) -> _Splits | None:
    """Return the training and the validation split in a folder; None if it has no splits."""
    complete = [family for family in _families(root).values() if _is_complete(family)]
    if not complete:
        for name, folder in root.folders.items():
            if parse_name(name) == Name(TRAIN, ()) and _enter(folder).folders:
                raise _ambiguous(root, source)
        return None
    if len(complete) > 1:
        raise _ambiguous(root, source)
    entered = {name: _enter(root.folders[name]) for name in chain.from_iterable(complete[0].values())}
    labeled = {
        role: [name for name in complete[0].get(role, ()) if _has_classes(name, entered[name])] for role in _ROLES
    }
    validation = labeled[VALIDATION] or labeled[TEST]
    if not labeled[TRAIN]:
        raise InputError(
            f"'{source}' must have class folders, got images directly in {', '.join(sorted(entered))}, which may be "
            "splits or classes; make a folder for each class in each split, or rename the classes"
        )
    for same in (labeled[TRAIN], validation):
        if len(same) > 1:
            raise InputError(f"'{source}' must have one folder per split, got {', '.join(same)}; move all but one away")
    used = labeled[TRAIN] + validation
    for name in root.folders.keys() - used:
        has_classes = name not in entered or _has_classes(name, entered[name])
        reason = "which is not used" if has_classes else "which has no class folders"
        left_out[f"in {name}, {reason}"] += len(root.folders[name].all())
    return entered[used[0]], entered[used[1]] if validation else None


def _has_classes(name: str, split: _Folder) -> bool:
    """Whether a split has class folders. A single folder such as "images", or of the split's name, is not a class."""
    if len(split.folders) != 1:
        return bool(split.folders)
    (only,) = split.folders
    is_wrapper = only.lower() == name.lower() or (any(map(str.isalpha, only)) and not parse_name(only).rest)
    return not is_wrapper


def _find_splits_in_classes(root: _Folder, source: str, left_out: Counter[str]) -> _Splits | None:
    """Return the splits if each class folder has folders for them; None if no class folder has."""
    if not any(map(_has_splits, root.folders.values())):
        return None
    by_split = _Folder((*root.path, "*"))
    for name, folder in root.folders.items():
        if folder.images or any(split.folders for split in folder.folders.values()):
            return None
        for split, images in folder.folders.items():
            by_split.below([split]).folders[name] = images
    return _find_splits(by_split, source, left_out)


def _check_classes(root: _Folder, source: str) -> None:
    """Raise InputError if class folders may be splits, because they have the same folders, or whole data sets.

    Archives often have a second copy of a data set in a folder next to its class folders.
    """
    for folder in chain.from_iterable(folder.walk() for folder in root.folders.values()):
        if _has_splits(folder) or len(folder.folders.keys() & root.folders.keys()) > 1:
            path = "/".join((source, *folder.path))
            raise InputError(
                f"'{source}' must have class folders or splits, got another data set in '{path}'; use the path of one "
                "data set, or move the images of each class directly into its folder"
            )
    inner = [set(_enter(folder).folders) for folder in root.folders.values() if not folder.images]
    inner = [names for names in inner if names]
    if len(inner) > 1:
        common, union = set.intersection(*inner), set.union(*inner)
        if len(union) > 1 and 2 * len(common) >= len(union):
            raise _ambiguous(root, source)


def _ambiguous(root: _Folder, source: str) -> InputError:
    inner = sorted({name for folder in root.folders.values() for name in _enter(folder).folders})
    classes = f" of the classes {first_few(inner)}" if inner else ""
    return InputError(
        f"'{'/'.join((source, *root.path))}' must have folders that are either splits or classes, got "
        f"{first_few(sorted(root.folders))}, which may be splits{classes}, or classes; rename the splits to train and "
        "val, or move the images of each class directly into its folder"
    )


def _make_set(folder: _Folder, source: str, make_images: MakeImages) -> ImageSet:
    classes = sorted(folder.folders)
    labeled = [(image, label) for label, name in enumerate(classes) for _, image in folder.folders[name].all()]
    images = make_images([image for image, _ in labeled], [label for _, label in labeled])
    return ImageSet(images, tuple(classes), "/".join((source, *folder.path)))
