import pytest

from orderone.core.errors import RunError
from orderone.core.files import write_atomically, written_aside


def test_replaces_whole_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "manifest.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new content")
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_who_has_the_old_file_open_keeps_it(tmp_path):
    """So no reader sees a mixture: the new file is another file, renamed into place."""
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_failure_midway_keeps_the_old_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"old")

    def fail_midway() -> None:
        with written_aside(path) as aside:
            aside.write_bytes(b"half of the n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_midway()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot be written") as caught:
        write_atomically(tmp_path / "no" / "file", b"")
    assert "\n" not in str(caught.value)
