"""The place of a row among those of its class, as a number that depends on the row alone.

Ranks have 63 bits, the lowest comes first. Where confidence decides they are 30 bits of it, the highest first, and 33
of a hash of the key, so that equal confidences are told apart by it; where chance decides, the hash alone. The same
rows have the same ranks in whatever files, batches and order they come.
"""

import numpy as np
import pyarrow as pa

BITS = 63
HASH_BITS = 33  # below the confidence
_ONE = int(np.float32(1).view(np.uint32))  # floats in 0 to 1 and their bits are in the same order
# Of 8 bytes, those that belong to the key when 0 to 8 are left of it.
_MASKS = np.array([(1 << 8 * left) - 1 for left in range(9)], np.uint64)


def distrust(confidences: np.ndarray) -> np.ndarray:
    """How far confidences (float32, in 0 to 1) are below 1, counted in floats: uint64 below 2^30."""
    return np.uint64(_ONE) - confidences.view(np.uint32)


def hash_keys(keys: pa.StringArray, seed: int) -> np.ndarray:
    """Hashes of keys (n,), uint64: the same in every process and on every machine."""
    if not len(keys):
        return np.empty(0, np.uint64)
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    lengths = np.diff(starts)
    first, last = int(starts[0]), int(starts[-1])
    text = np.zeros(last - first + 8, np.uint8)
    if last > first:
        text[:-8] = np.frombuffer(keys.buffers()[2], np.uint8)[first:last]
    words = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))  # the 8 bytes that begin at each
    places = starts[:-1] - first
    hashes = _mixed(lengths.astype(np.uint64) ^ _mixed(np.array([seed], np.uint64)))
    for done in range(0, int(lengths.max(initial=0)), 8):
        longer = np.flatnonzero(lengths > done) if (lengths <= done).any() else slice(None)
        left = np.minimum(lengths[longer] - done, 8)
        hashes[longer] = _mixed(hashes[longer] ^ (words[places[longer] + done] & _MASKS[left]))
    return hashes


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele et al. 2014): every bit of a number acts on every bit of the result."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def rank(distrusts: np.ndarray, hashes: np.ndarray, by_confidence: np.ndarray) -> np.ndarray:
    """Ranks (n,), uint64, of rows by confidence, or by chance where by_confidence is False."""
    told = (distrusts << np.uint64(HASH_BITS)) | (hashes >> np.uint64(64 - HASH_BITS))
    return np.where(by_confidence, told, hashes >> np.uint64(64 - BITS))
