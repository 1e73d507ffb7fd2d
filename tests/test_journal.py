"""Journals keep their entries when the process is interrupted or killed."""

import pytest

from lambdanets.work import open_journal


def write_and_interrupt(path, entries, identity):
    """Write entries to a journal, and leave its block with KeyboardInterrupt."""
    try:
        with open_journal(path, identity) as journal:
            for entry in entries:
                journal.add(entry)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass


def reopen(path, identity):
    with open_journal(path, identity):
        pass


def test_journal_resumes_with_its_entries_and_is_removed_at_the_end(tmp_path):
    path = tmp_path / "out.partial"
    write_and_interrupt(path, [{"a": 1}, {"a": "\udcff"}], {"weights": "x"})
    with open_journal(path, {"weights": "x"}) as journal:
        assert (journal.entries, journal.num_resumed) == ([{"a": 1}, {"a": "\udcff"}], 2)
        journal.add({"a": 3})
    assert journal.entries[-1] == {"a": 3}
    assert not path.exists()


def test_journal_without_entries_is_removed(tmp_path):
    write_and_interrupt(tmp_path / "out.partial", [], {"weights": "x"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing_bytes", range(1, 12))
def test_truncated_last_line_is_dropped(missing_bytes, tmp_path):
    path = tmp_path / "out.partial"
    write_and_interrupt(path, [{"a": 1}, {"a": 22222}], {"weights": "x"})
    path.write_bytes(path.read_bytes()[:-missing_bytes])
    with open_journal(path, {"weights": "x"}) as journal:
        assert journal.entries == [{"a": 1}]
        journal.add({"a": 2})
        assert path.read_text().splitlines() == ['{"weights": "x"}', '{"a": 1}', '{"a": 2}']


def test_rejects_a_journal_with_another_identity(tmp_path):
    path = tmp_path / "out.partial"
    write_and_interrupt(path, [1], {"weights": "x", "images": "y", "options": [1]})
    with pytest.raises(ValueError, match=r"was started with weights 'x', not 'z', options \[1\], not \[2\]; remove it"):
        reopen(path, {"weights": "z", "images": "y", "options": [2]})
    assert path.is_file()


@pytest.mark.parametrize("content", [b"no JSON\n", b"[1]\n", b"\xff\n"])
def test_rejects_a_damaged_journal(content, tmp_path):
    path = tmp_path / "out.partial"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged: .*; remove it to restart"):
        reopen(path, {"weights": 1})
    assert path.read_bytes() == content
