"""Text of a Hugging Face ``datasets`` name."""

from collections.abc import Iterable, Mapping
from typing import Any

from orderone.core.errors import DataError, MissingPackageError
from orderone.data.textfiles import Splits, cut_long, lines, split_lines

_VALIDATION = ("validation", "valid", "dev")


def hub(name: str) -> Splits:
    """Lines of dataset ``NAME``, ``OWNER/NAME`` or ``OWNER/NAME/CONFIG`` (or ``NAME:CONFIG``)."""
    path, config = _parts(name)
    try:
        import datasets  # pyright: ignore[reportMissingImports]  # optional, see extra "hub"
    except ImportError as error:
        raise MissingPackageError("datasets", needed_for=f"corpus 'hf:{name}'") from error
    try:
        loaded: Mapping[str, Any] = datasets.load_dataset(path, config)
    except Exception as error:  # the hub's errors share no base class
        raise DataError(
            f"dataset '{name}' could not be loaded ({type(error).__name__}: {error})",
            expected="a name on the Hugging Face hub, in its cache or a local folder",
            do="check the name, its configuration and the network",
        ) from error
    texts = {split: _texts(rows, name) for split, rows in loaded.items()}
    validation = next((texts[split] for split in _VALIDATION if split in texts), None)
    if "train" in texts and validation is not None and "test" in texts:
        return Splits(texts["train"], validation, texts["test"], "the data set's own splits")
    return split_lines([row for split in sorted(texts) for row in texts[split]], name=name)


def _parts(name: str) -> tuple[str, str | None]:
    path, colon, config = name.partition(":")
    if colon:
        return path, config or None
    parts = name.split("/", 2)
    return ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else (name, None)


def _texts(rows: Any, name: str) -> list[str]:
    columns: list[str] = list(rows.column_names)
    if "text" not in columns:
        raise DataError(
            f"columns {columns} in dataset '{name}'",
            expected="a column 'text'",
            do="write its text to a file and name that",
        )
    texts: Iterable[str] = rows["text"]
    return cut_long([row for text in texts for row in lines(text)])
