"""Keys of result files that have been renamed: files written before are still read."""

from typing import Any

_RENAMED = {
    "contestant": "candidate",
    "left_out": "skip_reason",
    "work": "phase",
}


def with_current_keys(content: Any) -> Any:
    """Return JSON content with the current name of each key."""
    if isinstance(content, dict):
        return {_RENAMED.get(key, key): with_current_keys(value) for key, value in content.items()}
    if isinstance(content, list):
        return [with_current_keys(value) for value in content]
    return content
