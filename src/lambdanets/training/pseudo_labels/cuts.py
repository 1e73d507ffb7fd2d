"""Where to cut each class, exactly and in bounded memory: which of its rows are seen, and how often.

The rows of a class are in the order of their ranks. Up to its cut they are seen once more than beyond. A cut is found
from counts of rows in bins of ranks: the bin that holds it is divided again, until the bins of all classes hold few
enough rows to sort them, ties of ranks by key.
"""

from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa

from lambdanets.errors import InputError
from lambdanets.training.pseudo_labels.ranking import BITS, HASH_BITS, distrust, hash_keys, rank
from lambdanets.training.pseudo_labels.scanning import Rows, Scan

COUNTERS = 1 << 22  # of all classes together, 8 bytes each
SORTED_ROWS = 1 << 20  # in memory at once, with their keys


@dataclass(frozen=True)
class Counts:
    """What a folder holds: rows and confident rows of each class (c,), the latter in bins of rank (c, bins)."""

    rows: np.ndarray
    confident: np.ndarray
    bins: np.ndarray
    highest: float


@dataclass(frozen=True)
class Cuts:
    """How often the rows of each class (c,) are seen: `base` times, and once more up to the cut.

    extra: rows up to the cut, of the lowest ranks; by_confidence: whether ranks are by confidence, or by chance;
    ranks and keys: of the last row up to the cut, 0 and "" where extra is 0.
    """

    base: np.ndarray
    extra: np.ndarray
    by_confidence: np.ndarray
    seed: int
    ranks: np.ndarray
    keys: list[str]

    def copies(self, rows: Rows) -> np.ndarray:
        """How often each confident row (n,) is seen, int32."""
        cut = self.ranks[rows.classes]
        known = self.by_confidence[rows.classes]
        highest = cut >> np.uint64(HASH_BITS)
        within = known & (rows.distrusts < highest)
        undecided = np.flatnonzero((self.extra[rows.classes] > 0) & (~known | (rows.distrusts == highest)))
        keys = rows.keys(undecided)
        ranks = rank(rows.distrusts[undecided], hash_keys(keys, self.seed), known[undecided])
        within[undecided] = ranks < cut[undecided]
        for i in np.flatnonzero(ranks == cut[undecided]):
            within[undecided[i]] = keys[i].as_py() <= self.keys[rows.classes[undecided[i]]]
        return (self.base[rows.classes] + within).astype(np.int32)


def _bin_bits(classes: int) -> int:
    """Bits of the number of a bin: as many bins for each class as there are counters."""
    return max(1, min(12, (COUNTERS // classes).bit_length() - 1))


def _distrust_bits(scan: Scan) -> int:
    """Bits of the largest distrust of a confident row, and at least those of a bin."""
    return max(int(distrust(np.array([scan.least]))[0]).bit_length(), _bin_bits(scan.classes))


def _add(bins: np.ndarray, classes: np.ndarray, places: np.ndarray) -> None:
    """Count rows in bins (c, bins): numpy is fast in this for one axis alone."""
    np.add.at(bins.reshape(-1), classes.astype(np.int64) * bins.shape[1] + places.astype(np.int64), 1)


def count(scan: Scan) -> Counts:
    """Count the rows of each class, the confident ones in bins of their confidence."""
    bits = _bin_bits(scan.classes)
    shift = np.uint64(_distrust_bits(scan) - bits)
    rows = np.zeros(scan.classes, np.int64)
    bins = np.zeros((scan.classes, 1 << bits), np.int64)
    highest = [0.0]
    lock = Lock()

    def visit(some: Rows) -> None:
        every = np.bincount(some.batch.column("class").to_numpy(), minlength=scan.classes)
        best = some.batch.column("confidence").to_numpy().max(initial=0)
        with lock:
            rows[:] += every
            _add(bins, some.classes, some.distrusts >> shift)
            highest[0] = max(highest[0], float(best))

    scan.visit(["class", "confidence"], visit)
    return Counts(rows, bins.sum(axis=1), bins, highest[0])


def find_cuts(scan: Scan, counts: Counts, per_class: int | None, seed: int) -> Cuts:
    """The cuts that leave per_class images of each class: its most confident, or all of them, some repeated.

    Without per_class every confident row is seen once. Raises InputError where two rows at a cut have the same key.
    """
    held = counts.confident
    if per_class is None:
        base, extra = np.ones_like(held), np.zeros_like(held)
    else:
        base, extra = np.divmod(per_class, np.maximum(held, 1))
        extra[base == 0] = per_class
        extra[held == 0] = 0
    by_confidence = base == 0
    search = _Search(scan, counts, extra, by_confidence, seed)
    ranks, keys = search.finish()
    return Cuts(base, extra, by_confidence, seed, ranks, keys)


class _Search:
    """Narrows for each class the range of ranks that holds its cut: from low on, 2^width ranks.

    wanted: how many rows of the range lie up to the cut; held: how many it has.
    """

    def __init__(self, scan: Scan, counts: Counts, extra: np.ndarray, by_confidence: np.ndarray, seed: int) -> None:
        self.scan, self.by_confidence, self.seed = scan, by_confidence, seed
        self.bits = _bin_bits(scan.classes)
        self.low = np.zeros(scan.classes, np.uint64)
        self.width = np.where(by_confidence, HASH_BITS + _distrust_bits(scan), BITS).astype(np.uint64)
        self.wanted = extra.astype(np.int64)
        self.held = counts.confident
        self._narrow(counts.bins, by_confidence)

    def finish(self) -> tuple[np.ndarray, list[str]]:
        """Rank and key of the last row up to the cut, of each class; 0 and "" where no row is wanted."""
        active = self.wanted > 0
        while self.held[active].sum() > SORTED_ROWS and self.width[active].any():
            bins = np.zeros((self.scan.classes, 1 << self.bits), np.int64)
            lock = Lock()

            def visit(rows: Rows, bins: np.ndarray = bins, lock: Lock = lock) -> None:
                which, ranks, _ = self._in_range(rows)
                classes = rows.classes[which]
                places = (ranks - self.low[classes]) >> self._shift()[classes]
                with lock:
                    _add(bins, classes, places)

            self.scan.visit(["key", "class", "confidence"], visit)
            self._narrow(bins, active)
        return self._sort()

    def _shift(self) -> np.ndarray:
        """Of ranks, what is shifted away to number bins."""
        return np.maximum(self.width, np.uint64(self.bits)) - np.uint64(self.bits)

    def _narrow(self, bins: np.ndarray, which: np.ndarray) -> None:
        """From counts in the bins of the range (c, bins) go on to the bin with the cut, for some classes."""
        up_to = bins.cumsum(axis=1)
        chosen = np.where(which, (up_to < self.wanted[:, None]).sum(axis=1), 0)
        every = np.arange(len(bins))
        shift = self._shift()
        inside = bins[every, chosen]
        self.wanted = np.where(which, self.wanted - (up_to[every, chosen] - inside), self.wanted)
        self.held = np.where(which, inside, self.held)
        self.low = np.where(which, self.low + (chosen.astype(np.uint64) << shift), self.low)
        self.width = np.where(which, shift, self.width)

    def _in_range(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, pa.StringArray]:
        """Which rows are of ranks within the range of their class, their ranks and their keys."""
        low, width, known = self.low[rows.classes], self.width[rows.classes], self.by_confidence[rows.classes]
        coarse = np.maximum(width, np.uint64(HASH_BITS))  # what confidence alone tells, without a hash
        possible = ~known | ((rows.distrusts << np.uint64(HASH_BITS)) >> coarse == low >> coarse)
        which = np.flatnonzero(possible & (self.wanted[rows.classes] > 0))
        keys = rows.keys(which)
        ranks = rank(rows.distrusts[which], hash_keys(keys, self.seed), known[which])
        inside = np.flatnonzero(ranks >> width[which] == low[which] >> width[which])
        return which[inside], ranks[inside], keys.take(pa.array(inside))

    def _sort(self) -> tuple[np.ndarray, list[str]]:
        """Collect the rows of all ranges, sort them, and read off the cuts."""
        parts: list[pa.Table] = []

        def visit(rows: Rows) -> None:
            which, ranks, keys = self._in_range(rows)
            if len(which):
                parts.append(pa.table({"class": rows.classes[which], "rank": ranks, "key": keys}))

        ranks, names = np.zeros(self.scan.classes, np.uint64), [""] * self.scan.classes
        if not self.wanted.any():
            return ranks, names
        self.scan.visit(["key", "class", "confidence"], visit)
        order = [(name, "ascending") for name in ("class", "rank", "key")]
        rows = pa.concat_tables(parts).sort_by(order).combine_chunks()
        classes, all_ranks, keys = (rows.column(name) for name in rows.column_names)
        starts = np.searchsorted(classes.to_numpy(), np.arange(self.scan.classes))
        for label in np.flatnonzero(self.wanted):
            last = int(starts[label] + self.wanted[label] - 1)
            ranks[label], names[label] = all_ranks[last].as_py(), keys[last].as_py()
            if last + 1 < len(rows) and rows.slice(last, 1).equals(rows.slice(last + 1, 1)):
                raise InputError(f"keys of a set must differ from each other, but {names[label]!r} is there twice")
        return ranks, names
