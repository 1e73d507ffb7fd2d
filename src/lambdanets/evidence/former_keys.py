"""Keys of result files that have been renamed: files written before are still read."""

from typing import Any

_RENAMED = {
    "contestant": "candidate",
    "left_out": "skip_reason",
    "work": "phase",
    "deviation_top1": "std_top1",
    "deviation_gain": "std_gain",
    "least_top1": "min_top1",
    "greatest_top1": "max_top1",
    "printed_top1": "paper_top1",
}


def with_current_keys(content: Any) -> Any:
    """Return JSON content with the current name of each key."""
    if isinstance(content, dict):
        return {_RENAMED.get(key, key): with_current_keys(value) for key, value in content.items()}
    if isinstance(content, list):
        return [with_current_keys(value) for value in content]
    return content
