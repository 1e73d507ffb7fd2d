"""A journal keeps finished entries, whatever ends the process."""

import pytest

from lambdanets.journal import open_journal


def interrupted(path, entries, identity):
    """Write a journal and raise KeyboardInterrupt."""
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
    interrupted(path, [{"a": 1}, {"a": "\udcff"}], {"weights": "x"})
    with open_journal(path, {"weights": "x"}) as journal:
        assert (journal.entries, journal.resumed) == ([{"a": 1}, {"a": "\udcff"}], 2)
        journal.add({"a": 3})
    assert journal.entries[-1] == {"a": 3}
    assert not path.exists()


def test_journal_without_entries_is_not_kept(tmp_path):
    interrupted(tmp_path / "out.partial", [], {"weights": "x"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut", range(1, 12))
def test_truncated_last_line_is_dropped(cut, tmp_path):
    path = tmp_path / "out.partial"
    interrupted(path, [{"a": 1}, {"a": 22222}], {"weights": "x"})
    path.write_bytes(path.read_bytes()[:-cut])
    with open_journal(path, {"weights": "x"}) as journal:
        assert journal.entries == [{"a": 1}]
        journal.add({"a": 2})
        assert path.read_text().splitlines() == ['{"weights": "x"}', '{"a": 1}', '{"a": 2}']


def test_rejects_a_journal_of_other_work(tmp_path):
    path = tmp_path / "out.partial"
    interrupted(path, [1], {"weights": "x", "images": "y", "options": [1]})
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
