"""`lambdanets shard`: writes, checks and lists images in shards."""

import dataclasses
import os
from pathlib import Path

import tyro

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError
from lambdanets.signals import resumable
from lambdanets.terminal import say


@dataclasses.dataclass(frozen=True)
class Shard:
    """What to write into shards, and where; or which shards to check."""

    folder: tyro.conf.Positional[str]
    """A data set as for lambdanets train: a folder, a .tar, digits; with --verify or --index, the shards themselves."""
    out: tyro.conf.Positional[Path | None] = None
    """Folder for the shards; new, or of the same command, which then resumes."""
    verify: bool = False
    """Read all shards again and compare them with shards.json: those in OUT once written, else those in FOLDER."""
    index: bool = False
    """Write shards.json for tars in FOLDER that webdataset or img2dataset wrote."""
    unlabelled: bool = False
    """Take all images in FOLDER and its sub-folders, without classes."""
    classes: Path | None = None
    """For --index, a file with the name of a class a line, in the order of their numbers."""
    data_root: str | None = None
    """Where a data set named for timm lies."""
    validation_share: float = 0.2
    """Share of the images for validation, where the data set has no validation part."""
    images_per_shard: int = 10_000
    """Most images in a shard."""
    processes: int | None = None
    """Shards to write at a time; by default one a core."""
    seed: int = 0
    """Draws the order of the images and which are held out."""
    check_images: bool = True
    """Decode every image, and leave out those that cannot be read."""
    max_unreadable: int = 100
    """Images that may be left out before the command stops."""


_WRITING = {"out", "verify", "images_per_shard", "processes", "seed", "check_images", "max_unreadable"}


def main(arguments: list[str]) -> int:
    """Run `lambdanets shard` and return its exit code, 2 where shards are bad."""
    description = "Write a set of images into WebDataset shards, or check or list those in a folder or at a URL."
    options = parse(Shard, arguments, prog="lambdanets shard", description=description)
    processes = len(os.sched_getaffinity(0)) if options.processes is None else options.processes
    if processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}")
    if not options.folder:  # Path("") is the current folder
        raise InputError("folder must be a data set, a folder or a URL, got ''")
    if options.out is None:
        if options.verify == options.index:
            raise InputError("name a folder for the shards after the data set, or one of --verify and --index")
        if options.verify:
            _refuse_idle(options, "shards are verified", {"verify", "processes"})
            return _verify(options.folder, processes)
        _refuse_idle(options, "shards are listed", {"index", "classes"})
        return _index(options)
    if options.index:
        raise InputError("--index writes a list beside the shards and takes no second folder")
    if options.unlabelled:
        _refuse_idle(options, "images without classes are written", _WRITING | {"unlabelled"})
    else:
        _refuse_idle(options, "shards are written", _WRITING | {"data_root", "validation_share"})
    return _write(options, options.out, processes)


def _refuse_idle(options: Shard, when: str, used: set[str]) -> None:
    """Raise InputError for an option that is given and not among those used."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name not in used | {"folder"} and value != field.default:
            flag = f"{'no-' if value is False else ''}{field.name.replace('_', '-')}"
            raise InputError(f"--{flag} does nothing when {when}; leave it out")


def _write(options: Shard, out: Path, processes: int) -> int:
    from lambdanets.data.datasets import open_splits
    from lambdanets.data.images import images_under
    from lambdanets.data.shards.writing import write_shards

    if options.unlabelled and not Path(options.folder).is_dir():
        raise InputError(f"expected a folder of images with --unlabelled, but '{options.folder}' is none")
    with resumable("finished shards are kept"):
        written = write_shards(
            images_under(Path(options.folder))
            if options.unlabelled
            else open_splits(
                options.folder,
                root=options.data_root,
                validation_share=options.validation_share,
                seed=options.seed,
            ),
            out,
            images_per_shard=options.images_per_shard,
            processes=processes,
            seed=options.seed,
            check_images=options.check_images,
            max_unreadable=options.max_unreadable,
        )
    if written.unreadable:
        say(f"left out {len(written.unreadable)} images that could not be read:")
        say(*(f"  {sentence}" for sentence in written.unreadable))
    say(f"{written.images:,} images in {written.shards:,} shards of {out}, {written.bytes / 1e9:.3g} GB")
    say(f"written in {written.seconds:.0f} s; train with --data {out}")
    return _verify(str(out), processes) if options.verify else 0


def _verify(location: str, processes: int) -> int:
    from lambdanets.data.shards.checks import verify_shards

    verified = verify_shards(location, processes=processes)
    say(*verified.bad)
    whole = verified.shards - len(verified.bad)
    say(f"{whole:,} of {verified.shards:,} shards are whole; {verified.images:,} images by their list")
    return 2 if verified.bad else 0


def _index(options: Shard) -> int:
    from lambdanets.data.shards.checks import index_shards
    from lambdanets.data.shards.listing import SHARD_LIST

    folder = Path(options.folder)
    names = None
    if options.classes is not None:
        try:
            names = options.classes.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"expected class names in {options.classes}, but it cannot be read: {error}") from error
    listed = index_shards(folder, names)
    for name, shards in listed.parts.items():
        say(f"{name}: {sum(shard.images for shard in shards):,} images in {len(shards):,} shards")
    say(f"{len(listed.classes):,} classes; written to {folder / SHARD_LIST}")
    return 0
