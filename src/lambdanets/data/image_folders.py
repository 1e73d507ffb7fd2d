"""Finds the splits and the classes of images from the names of the folders in which they are."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from lambdanets.data.image_search import TarMember, describe_left_out
from lambdanets.data.labeled_images import ImageFiles
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
_IMAGES = re.compile(r"(?i)(jpe?g|png|raw|original)?_?(images?|imgs?)?")
_MASKS = re.compile(r"(?i)(masks?|labels?|annot\w*|seg\w*|gt|ground_?truths?|trimaps?)(_?(images?|imgs?|png))?")


class Name(NamedTuple):
    """The words of a name. role: TRAIN, VALIDATION, TEST, or "". rest: words that say nothing about a split."""

    role: str
    rest: tuple[str, ...]


@dataclass(frozen=True)
class _Folder:
    """A folder with images in it or below. path: in the data set. files: the folders of each image, and the image."""

    path: tuple[str, ...]
    files: list[tuple[tuple[str, ...], Path | TarMember]]

    @property
    def has_images(self) -> bool:
        return any(len(folders) == len(self.path) for folders, _ in self.files)

    @cached_property
    def folders(self) -> "dict[str, _Folder]":
        depth = len(self.path)
        inside: defaultdict[str, list[Any]] = defaultdict(list)
        for folders, image in self.files:
            if len(folders) > depth:
                inside[folders[depth]].append((folders, image))
        return {name: _Folder((*self.path, name), files) for name, files in inside.items()}

    def walk(self) -> "Iterator[_Folder]":
        yield self
        for folder in self.folders.values():
            yield from folder.walk()


def parse_name(name: str) -> Name:
    """Find the name of a split in a name such as "Training", "seg_train", "testSet" or "val2017"."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    matches = [(word.lower(), _WORD.fullmatch(word.lower())) for word in words]
    roles = {match.lastgroup or "" for _, match in matches if match is not None} - {"neutral"}
    if roles == {TRAIN, VALIDATION}:  # such as train_val
        roles = {TRAIN}
    return Name(roles.pop() if len(roles) == 1 else "", tuple(word for word, match in matches if match is None))


def find_splits(
    source: str, images: Iterable[tuple[PurePath, Path | TarMember]], left_out: Counter[str]
) -> tuple[ImageFiles, ImageFiles | None, Counter[str]]:
    """Find the training and the validation set of a data set from the paths of its images.

    source: the data set, for messages. images: path in the data set, and image.
    left_out: number of files that are left out already, by reason; those that are not used are added to the result.

    A folder that contains only one folder is skipped. Then its folders are splits (see `parse_name`) of class folders,
    or class folders with images anywhere in them. A training and a validation split are used; a test split replaces
    a missing validation split. A split without class folders is left out, unless it is for training.

    Raises InputError if there are no images in class folders, and for folders that may be splits or classes.
    """
    data = _Folder((), [(tuple(map(nfc, path.parts[:-1])), image) for path, image in images])
    root = _enter(data)
    if not root.folders:
        got = "images outside class folders" if data.files else f"no images ({describe_left_out(left_out)})"
        raise InputError(f"'{source}' must have one sub-folder of images per class, got {got}")
    unused = Counter[str]()
    folders = _find_splits(root, source, unused)
    _check_classes(folders[0], source)
    train, *validation = (_make_set(folder, source) for folder in folders)
    outside = len(data.files) - sum(map(len, (train, *validation))) - unused.total()
    left_out = left_out + unused + Counter({"outside class folders": outside})
    return train, validation[0] if validation else None, left_out


def _enter(folder: _Folder) -> _Folder:
    """Return the folder that has class folders or splits: this one, or the only one in it, and so on."""
    while len(folder.folders) == 1:
        (only,) = folder.folders.values()
        if len(only.folders) < (2 if only.has_images else 1):
            break
        folder = only
    return folder


def _split_names(folder: _Folder) -> list[dict[str, list[str]]]:
    """Return the names of splits in a folder by role, for each group of them whose names have the same other words."""
    groups: defaultdict[tuple[str, ...], defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in folder.folders:
        role, rest = parse_name(name)
        if role:
            groups[rest][role].append(name)
    return [dict(group) for group in groups.values() if TRAIN in group and len(group) > 1]


def _find_splits(root: _Folder, source: str, left_out: Counter[str]) -> list[_Folder]:
    """Return the training and, if there is one, the validation split in a folder; itself if it has no splits."""
    groups = _split_names(root)
    if not groups:
        names = {name: parse_name(name) for name in root.folders}
        are_splits = len({*names.values()}) > 1 and all(name.role for name in names.values())
        has_train = any(names[name] == Name(TRAIN, ()) and _enter(root.folders[name]).folders for name in names)
        if has_train or (are_splits and len({name.rest for name in names.values()}) == 1):
            raise _ambiguous(root, source)
        return [root]
    entered = {name: _enter(root.folders[name]) for name in chain.from_iterable(groups[0].values())}
    trains = [name for name in groups[0][TRAIN] if len(entered[name].folders) > 1]
    classes = {name for train in trains for name in entered[train].folders}
    # a single folder of another name, such as "images", is not a class
    labeled = [name for name in entered if len(entered[name].folders) > 1 or entered[name].folders.keys() & classes]
    validation = [[name for name in groups[0].get(role, ()) if name in labeled] for role in (VALIDATION, TEST)]
    used = trains + (validation[0] or validation[1])
    if len(groups) > 1 or len(trains) != 1 or len(used) > 2:
        raise _ambiguous(root, source)
    for name in root.folders.keys() - used:
        left_out[f"in {name}, which is not used"] += len(root.folders[name].files)
    return [entered[name] for name in used]


def _check_classes(root: _Folder, source: str) -> None:
    """Raise InputError if class folders may be splits, because they have the same folders, whole data sets, or masks.

    Archives often have a second copy of a data set in a folder next to its class folders.
    """
    images, masks = ([name for name in root.folders if words.fullmatch(name)] for words in (_IMAGES, _MASKS))
    if images and masks:
        raise InputError(
            f"'{'/'.join((source, *root.path))}' must have a folder for each class, got folders of images and of masks,"
            f" {first_few(images + masks)}; rename them if they are classes: masks are learned from COCO annotations"
        )
    for folder in chain.from_iterable(folder.walk() for folder in root.folders.values()):
        if _split_names(folder) or len(folder.folders.keys() & root.folders.keys()) > 1:
            raise _ambiguous(folder, source)
    inner = [set(_enter(folder).folders) for folder in root.folders.values() if not folder.has_images]
    inner = [folders for folders in inner if folders]
    if len(inner) > 1 and 2 * len(set.intersection(*inner)) >= len(set.union(*inner)) > 1:
        raise _ambiguous(root, source)


def _ambiguous(root: _Folder, source: str) -> InputError:
    return InputError(
        f"'{'/'.join((source, *root.path))}' must have folders that are either splits or classes, got "
        f"{first_few(sorted(root.folders))}; give the path of one data set that has a folder for each class, or "
        "folders train and val with a folder for each class"
    )


def _make_set(folder: _Folder, source: str) -> ImageFiles:
    classes = tuple(sorted(folder.folders))
    labeled = [(image, label) for label, name in enumerate(classes) for _, image in folder.folders[name].files]
    files, labels = [image for image, _ in labeled], [label for _, label in labeled]
    return ImageFiles(files, labels, classes, "/".join((source, *folder.path)))
