"""Hostile files end in one line; ordinary ones lose nothing."""

import os
import zipfile
from pathlib import Path

import pytest

from orderone.core.errors import DataError
from orderone.data import textfiles
from orderone.data.corpora import corpus
from orderone.data.textfiles import cut_long, lines, split_files, split_lines


def write_zip(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 lines"),
        (b" \n\n\t\n", "0 lines"),
        (b"one line\n", "1 lines"),
        (b"text\0more\n" * 9, "binary (a zero byte at 4)"),
        ("déjà\n".encode("latin-1") * 9, "not UTF-8 (byte 1: 0xe9)"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "hostile.txt"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        corpus(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_a_pipe_and_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text file"):
        corpus(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="no text file"):  # opening it would wait for ever
        corpus(tmp_path)
    with pytest.raises(DataError, match="no file"):
        corpus(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="nothing at"):
        corpus(tmp_path / "absent.txt")


def test_one_huge_line_is_cut_at_spaces_and_loses_no_word(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(50_000)]
    path = tmp_path / "text8"
    path.write_text(" ".join(words))
    found = corpus(path)
    rows = [*found.train, *found.validation, *found.test]
    assert max(map(len, rows)) <= textfiles.LONGEST_LINE
    assert " ".join(rows).split() == words


def test_a_huge_line_without_spaces_is_cut_all_the_same() -> None:
    row = "x" * (3 * textfiles.LONGEST_LINE + 7)
    assert "".join(cut_long([row])) == row


def test_a_byte_order_mark_and_carriage_returns_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes("\ufeff".encode() + b"a\r\n" + b"b\r\n" * 8)
    assert corpus(path).train[0] == "a"


def test_only_line_feeds_end_lines() -> None:
    assert lines("a\u2028b\x0cc\n d ") == ["a\u2028b\x0cc", "d"]
    assert lines("  d ", indented=True) == ["  d"]


def test_a_zip_is_read_in_place_and_its_names_reach_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    path = write_zip(inside / "evil.zip", {"../../escaped.txt": "a\nb\nc\nd\n"})
    before = sorted(tmp_path.rglob("*"))
    found = corpus(path)
    assert [*found.train, *found.validation, *found.test] == ["a", "b", "c", "d"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "bomb.zip", {"a.txt": "a\n" * 5000, "b.txt": "b\n" * 5000})
    monkeypatch.setattr(textfiles, "MAX_BYTES", 15_000)  # below both together, above each
    with pytest.raises(DataError, match="20,000 bytes"):
        corpus(path)


def test_a_zip_without_its_end_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_text("PK, but nothing that a zip ends with\n" * 9)
    with pytest.raises(DataError, match="a zip that cannot be read"):
        corpus(path)


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.txt": "some text\n" * 1000})
    data = bytearray(path.read_bytes())
    data[45:60] = b"\xff" * 15
    path.write_bytes(data)
    with pytest.raises(DataError, match="cannot be unpacked"):
        corpus(path)


def test_splits_keep_every_line_once_and_in_order() -> None:
    rows = [str(i) for i in range(200)]
    train, validation, test, note = split_lines(rows, name="x")
    assert train + validation + test == rows
    assert (len(validation), len(test)) == (10, 10)
    assert "10 lines are test" in note


def test_files_are_held_out_whole() -> None:
    files = {f"f{i}": [f"{i} {j}" for j in range(5)] for i in range(40)}
    parts = split_files(files)[:3]
    owners = [{row.split()[0] for row in part} for part in parts]
    assert [len(owner) for owner in owners] == [36, 2, 2]
    assert len(set.union(*owners)) == 40
    reordered = dict(reversed(files.items()))
    assert split_files(reordered) == split_files(files)
