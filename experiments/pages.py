"""Sections of pages that scripts write: the text between two HTML comments."""

from pathlib import Path


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after the section of a script."""
    return f"<!-- written by experiments/{name}.py -->\n", f"<!-- end of {name} -->\n"


def replace_section(page: Path, begin_end: tuple[str, str], section: str) -> None:
    """Replace the section between its markers. Raises ValueError if the page does not have each marker once."""
    begin, end = begin_end
    text = page.read_text(encoding="utf-8")
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end) or text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} must have the lines {begin.strip()!r} and {end.strip()!r}, each once")
    page.write_text(before + begin + section + end + after, encoding="utf-8")
