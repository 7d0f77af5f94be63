"""Records: the one contract that joins what is measured to what is drawn.

A records file holds one JSON object a line, ``{"step", "name", "value", "labels"}``. JSON has no
NaN and no infinity, so a value that is not finite is written as ``"value": null`` with
``"nonfinite": "nan" | "inf" | "-inf"`` beside it: every line stays strict JSON.
"""

import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import polars as pl

from orderone.core.errors import ConfigError, RunError, TornRecordWarning
from orderone.core.files import cannot_write, write_atomically

COLUMNS = ("step", "name", "value")
_LAST_STEP = 2**63 - 1
_STRICT = json.JSONEncoder(allow_nan=False)  # made once: json.dumps makes one a call
_NONFINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Record:
    """One number, measured at one step: ``Record(100, "norm", 3.2, {"layer": "encoder.3"})``."""

    step: int
    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not self._is_sound():
            self._refuse()
        object.__setattr__(self, "step", int(self.step))
        object.__setattr__(self, "value", float(self.value))
        object.__setattr__(self, "labels", dict(self.labels))

    def _is_sound(self) -> bool:
        # Without the texts of ``_refuse``, which would take longer than the checks.
        return (
            _is_step(self.step)
            and _is_text(self.name)
            and _is_number(self.value)
            and _is_mapping(self.labels)
            and all(
                _is_text(k) and k not in COLUMNS and _is_text(v) for k, v in self.labels.items()
            )
        )

    def _refuse(self) -> None:
        _require(_is_step(self.step), f"step {self.step!r}", "a whole number from 0 below 2⁶³")
        _require(_is_text(self.name), f"record name {self.name!r}", "a string in valid unicode")
        _require(_is_number(self.value), f"value {self.value!r} of '{self.name}'", "a real number")
        _require(_is_mapping(self.labels), f"labels {self.labels!r}", "a mapping of strings")
        for key, label in self.labels.items():
            _require(_is_text(key) and key not in COLUMNS, f"label key {key!r}", _LABEL_KEY)
            _require(_is_text(label), f"label {key}={label!r}", "a string in valid unicode")

    def to_line(self) -> str:
        """One line of strict, pure ASCII JSON, without its newline."""
        fields: dict[str, object] = {"step": self.step, "name": self.name, "value": self.value}
        if not math.isfinite(self.value):
            fields |= {"value": None, "nonfinite": str(self.value)}
        return _STRICT.encode({**fields, "labels": self.labels})

    @classmethod
    def from_line(cls, line: str | bytes) -> "Record":
        """The record that ``to_line`` wrote; RunError when it is not one."""
        try:
            fields = json.loads(line)
            value = fields["value"]
            if value is None and fields["nonfinite"] in _NONFINITE:
                value = float(fields["nonfinite"])
            return cls(fields["step"], fields["name"], cast(float, value), fields["labels"])
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise RunError(
                f"a line that is not a record ({error})",
                expected='{"step": …, "name": …, "value": …, "labels": {…}}',
                do="repair or remove that line",
            ) from error


_LABEL_KEY = "a string other than step, name and value, which are columns of their own"


class RecordWriter:
    """Appends records to a file; each line is whole on disk or absent.

    Lines are gathered and handed to the system whole, at the latest a second after the first of
    them when another record comes, and at ``flush`` and ``close``. A tail torn by a run that was
    killed while writing is cut when the file is opened again. One writer a file at a time.
    """

    def __init__(
        self, path: str | Path, *, buffer_bytes: int = 1 << 16, seconds: float = 1.0
    ) -> None:
        self.path = Path(path)
        self._buffer = bytearray()
        self._buffer_bytes = buffer_bytes
        self._seconds = seconds
        self._flushed = time.monotonic()
        self._handle: int | None = None
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            _cut_torn_tail(self._handle, self.path)
        except OSError as error:
            self.close()
            raise cannot_write(self.path, error) from error

    def write(self, record: Record) -> None:
        """Append one record."""
        self.write_all((record,))

    def write_all(self, records: Iterable[Record]) -> None:
        """Append records in order."""
        self._open_handle()
        for record in records:
            self._buffer += record.to_line().encode("ascii") + b"\n"
            if len(self._buffer) >= self._buffer_bytes:
                self.flush()
        if time.monotonic() - self._flushed > self._seconds:
            self.flush()

    def flush(self, *, fsync: bool = False) -> None:
        """Hand what was gathered to the system; with ``fsync``, wait until the disk has it."""
        handle = self._open_handle()
        lines, self._buffer = bytes(self._buffer), bytearray()
        self._flushed = time.monotonic()
        try:
            _append_whole(handle, lines)
            if fsync:
                os.fsync(handle)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def truncate_after(self, step: int) -> None:
        """Drop every record of a step above ``step``, as a resumed run must before it repeats them.

        The file is written aside and renamed: a kill leaves the old records or the kept ones.
        """
        self.close()
        keep_records_until(self.path, step)
        self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND)

    def close(self) -> None:
        """Flush, then let go of the file."""
        if self._handle is None:
            return
        try:
            self.flush()
        finally:
            handle, self._handle = self._handle, None
            os.close(handle)

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_handle(self) -> int:
        if self._handle is None:
            raise RunError(
                f"the writer of '{self.path}' is closed",
                expected="an open one",
                do="open a new RecordWriter",
            )
        return self._handle


def read_records(path: str | Path) -> pl.DataFrame:
    """All records of a file, in the order written.

    Columns ``step`` Int64, ``name`` String, ``value`` Float64, then one String column a label key,
    null where a record lacks it. A torn last line is dropped with a TornRecordWarning; a number
    that another program wrote as a name or label is read as its text.
    """
    return _frame(_whole_lines(Path(path)), Path(path))


def _frame(data: bytes, path: Path) -> pl.DataFrame:
    kinds: dict[str, Any] = {"step": pl.Int64, "name": pl.String, "value": pl.Float64}
    if not data:
        return pl.DataFrame(schema=kinds)
    try:
        frame = pl.read_ndjson(data, infer_schema_length=None, schema_overrides=kinds)
        return _checked_columns(frame)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, _MalformedError) as error:
        raise _first_malformed(data, path, error) from error


def keep_records_until(path: str | Path, step: int) -> None:
    """Drop every record of a step above ``step``; the file is written aside and renamed."""
    data = _whole_lines(Path(path))
    kept = (_frame(data, Path(path))["step"] <= step).to_list()
    lines = [line for line in data.split(b"\n") if line.strip()]
    write_atomically(path, b"".join(line + b"\n" for line in compress(lines, kept)))


class _MalformedError(Exception):
    """The frame that polars read is not one of records."""


def _checked_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Label keys as columns and ``nonfinite`` folded into ``value``."""
    if not {*COLUMNS, "labels"} <= set(frame.columns):
        raise _MalformedError("columns are missing")
    value = pl.col("value")
    if "nonfinite" in frame.columns:
        value = value.fill_null(pl.col("nonfinite").cast(pl.Float64))
    frame = frame.with_columns(value).select(*COLUMNS, "labels")
    labels = frame.schema["labels"]
    if any(frame.null_count().row(0)) or not isinstance(labels, pl.Struct):
        raise _MalformedError("a field is missing")
    kinds = {each.name: each.dtype for each in labels.fields}
    if any(kind != pl.String for kind in kinds.values()) or set(kinds) & set(COLUMNS):
        raise _MalformedError("a label is not a string")
    return frame.unnest("labels") if kinds else frame.drop("labels")


def _first_malformed(data: bytes, path: Path, error: BaseException) -> RunError:
    """The error that names the first line which is not a record; slow, so only after a failure."""
    try:
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            _record_at(number, line, path)
    except RunError as found:
        return found
    return RunError(
        f"'{path}' cannot be read: {error}",
        expected="records that agree with one another",
        do="repair the file or take another run",
    )


def _record_at(number: int, line: bytes, path: Path) -> Record:
    try:
        return Record.from_line(line)
    except RunError as error:
        raise RunError(
            f"line {number} of '{path}': {error.found}", expected=error.expected, do=error.do
        ) from error


def _whole_lines(path: Path) -> bytes:
    """The file's content up to its last newline; what follows was torn by a kill."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"'{path}' cannot be read: {error.strerror or error}",
            expected="the records file of a run",
            do="check the path, or name another run folder",
        ) from error
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        _warn_torn(path, len(data) - whole)
    return data[:whole]


def _cut_torn_tail(handle: int, path: Path) -> None:
    """Cut the file after its last newline, so that the next line starts on its own."""
    size = whole = os.fstat(handle).st_size
    while whole > 0:
        start = max(0, whole - (1 << 16))
        newline = os.pread(handle, whole - start, start).rfind(b"\n")
        if newline >= 0:
            whole = start + newline + 1
            break
        whole = start
    if whole < size:
        _warn_torn(path, size - whole)
        os.ftruncate(handle, whole)


def _warn_torn(path: Path, length: int) -> None:
    warnings.warn(
        f"the last line of '{path}' was torn by a killed run; its {length} bytes are dropped",
        TornRecordWarning,
        stacklevel=4,
    )


def _append_whole(handle: int, lines: bytes) -> None:
    """All of ``lines``, or, when the disk fails in their midst, none of them."""
    size = os.fstat(handle).st_size
    rest = memoryview(lines)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError:
        with suppress(OSError):  # a tail that cannot be cut now is cut on opening again
            os.ftruncate(handle, size)
        raise


def _require(holds: bool, found: str, expected: str) -> None:
    if not holds:
        raise ConfigError(found, expected=expected, do="change what is recorded")


def _is_step(step: object) -> bool:
    # A bool is an Integral to Python, and never a step to us.
    return (type(step) is int or _is_a(step, Integral)) and 0 <= cast(int, step) <= _LAST_STEP


def _is_number(value: object) -> bool:
    return type(value) is float or _is_a(value, Real)


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_mapping(labels: object) -> bool:
    return isinstance(labels, dict | Mapping)


def _is_text(text: object) -> bool:
    """A string that UTF-8 can hold: lone surrogates cannot be read back by every JSON reader."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
