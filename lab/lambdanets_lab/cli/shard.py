"""`lambdanets shard`: write, verify and index WebDataset shards."""

import os
import time
from pathlib import Path
from typing import Annotated

from pydantic import NonNegativeInt, PositiveInt

from lambdanets.cli.options import POSITIONAL, parse
from lambdanets.cli.predict import report_unreadable
from lambdanets.errors import InputError
from lambdanets.records import Seed, ValidationShare, record
from lambdanets.signals import resumable, uninterrupted
from lambdanets.terminal import echo, plural


@record
class Shard:
    """Write a dataset as WebDataset shards, or verify or index existing shards."""

    data: Annotated[str, POSITIONAL]
    """Dataset, as in lambdanets train --data; without OUT, existing shards: a folder or, with --verify, a URL."""
    out: Annotated[Path | None, POSITIONAL] = None
    """New folder for the shards; the same command resumes. Omit it with --index, or to verify the shards in DATA."""
    verify: bool = False
    """Verify the shards against shards.json: those written to OUT or, without OUT, those in DATA."""
    index: bool = False
    """Write shards.json for DATA, a folder of tar files from webdataset or img2dataset."""
    unlabeled: bool = False
    """Write all images in DATA and its sub-folders, without class labels."""
    classes: Path | None = None
    """With --index: text file with one class name per line."""
    data_root: str | None = None
    """Root folder of a timm dataset, such as torch/cifar10."""
    validation_share: ValidationShare = 0.2
    """Fraction of each class used for validation if the data has no validation split."""
    images_per_shard: PositiveInt = 10_000
    """Maximum number of images per shard."""
    threads: PositiveInt | None = None
    """Number of shards that are written or verified at a time; one per CPU core by default."""
    seed: Seed = 0
    """Random seed of the shuffling and the validation split."""
    check_images: bool = True
    """Decode every image once and skip unreadable ones."""
    max_unreadable: NonNegativeInt = 100
    """Maximum number of unreadable images, which are skipped."""

    def __post_init__(self) -> None:
        if self.classes is not None and not self.index:
            raise InputError(f"--classes must be given only with --index, got {self.classes}")


def main(arguments: list[str]) -> int:
    """Run `lambdanets shard` and return its exit code, 2 for damaged shards."""
    options = parse(Shard, arguments, "shard")
    threads = options.threads or os.cpu_count() or 1
    if options.out is not None and not options.index:
        return _write(options, options.out, threads)
    if options.out is not None or options.verify == options.index:
        raise InputError("OUT, or one of --verify and --index, must be given")
    return _verify(options.data, threads) if options.verify else _index(options)


def _write(options: Shard, out: Path, threads: int) -> int:
    from lambdanets.data.datasets import open_splits
    from lambdanets.data.image_search import describe_classes, describe_left_out, find_images
    from lambdanets_lab.shards import write_shards

    if options.unlabeled:
        paths, left_out = find_images([options.data])
        echo(describe_left_out(left_out))
    else:
        splits = open_splits(
            options.data, root=options.data_root, validation_share=options.validation_share, seed=options.seed
        )
        echo(describe_classes(splits.train.classes), describe_left_out(splits.left_out))
    started = time.monotonic()
    with resumable("finished shards are kept; run the same command to resume"):
        written = write_shards(
            paths if options.unlabeled else splits,
            out,
            images_per_shard=options.images_per_shard,
            threads=threads,
            seed=options.seed,
            check_images=options.check_images,
            max_unreadable=options.max_unreadable,
        )
    report_unreadable(written.metadata["unreadable"])
    images, size = (sum(getattr(shard, name) for shard in written.shards) for name in ("images", "bytes"))
    echo(f"{plural(images, 'image')} in {plural(len(written.shards), 'shard')} of {out}, {size / 1e9:.3g} GB")
    advice = "label with lambdanets pseudo-label" if options.unlabeled else f"train with --data {out}"
    echo(f"written in {time.monotonic() - started:.0f} s; {advice}")
    return _verify(str(out), threads) if options.verify else 0


def _verify(location: str, threads: int) -> int:
    from lambdanets_lab.shards import verify_shards

    with uninterrupted():
        content, damaged = verify_shards(location, threads=threads)
    echo(*damaged)
    shards, images = len(content.shards), sum(shard.images for shard in content.shards)
    echo(f"{shards - len(damaged):,} of {plural(shards, 'shard')} intact; {plural(images, 'image')} in shards.json")
    return 2 if damaged else 0


def _index(options: Shard) -> int:
    from lambdanets.data.shards import SHARD_LIST
    from lambdanets_lab.shards import index_shards

    folder, names = Path(options.data), None
    if options.classes is not None:
        try:
            names = options.classes.read_text(encoding="utf-8-sig").rstrip().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"classes must be a readable text file, got {options.classes}: {error}") from error
    shard_list = index_shards(folder, names)
    for name, shards in shard_list.splits.items():
        echo(f"{name}: {plural(sum(shard.images for shard in shards), 'image')} in {plural(len(shards), 'shard')}")
    echo(f"{len(shard_list.classes):,} classes; written to {folder / SHARD_LIST}")
    return 0
