import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderone.core.errors import RunError, TornRecordWarning
from orderone.core.record import Record, RecordWriter, keep_records_until, read_records

HOSTILE = [
    'quote " and \\ backslash',
    "line\nend\r\n\u2028\u2029\x85\x0b\x0c",
    "<script>alert('θ')</script>",
    "\x00\x1f\x7f",
    "深い🜁",
    "",
    "null",
    "1e5",
]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def write(path, *records):
    with RecordWriter(path) as writer:
        writer.write_all(records)


def assert_same(record: Record, other: Record) -> None:
    assert repr(record.value) == repr(other.value)
    assert (record.step, record.name, record.labels) == (other.step, other.name, other.labels)


@given(
    step=st.integers(0, 2**63 - 1),
    name=text,
    value=st.floats(),
    labels=st.dictionaries(
        text.filter(lambda key: key not in ("step", "name", "value")), text, max_size=3
    ),
)
def test_a_line_round_trips_as_strict_ascii_json(step, name, value, labels):
    record = Record(step, name, value, labels)
    line = record.to_line()
    assert line.isascii()
    assert "\n" not in line
    json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is not strict JSON"))
    assert_same(Record.from_line(line), record)


def test_hostile_names_and_labels_come_back_in_the_frame(path):
    records = [Record(i, each, i / 7, {each + "key": each}) for i, each in enumerate(HOSTILE)]
    write(path, *records)
    frame = read_records(path)
    assert frame["name"].to_list() == HOSTILE
    for row, record in zip(frame.iter_rows(named=True), records, strict=True):
        labels = {k: v for k, v in row.items() if k not in ("step", "name", "value")}
        assert {k: v for k, v in labels.items() if v is not None} == record.labels


def test_values_come_back_bit_for_bit(path):
    draw = random.Random(0)
    values = [draw.gauss(0, 1) * 10 ** draw.randint(-300, 300) for _ in range(2000)]
    values += [math.inf, -math.inf, math.nan, 0.0, -0.0, 5e-324, 1.7976931348623157e308]
    write(path, *(Record(0, "x", value) for value in values))
    back = read_records(path)["value"].to_list()
    assert list(map(repr, back)) == list(map(repr, values))


def test_columns_of_the_frame(path):
    write(path, Record(0, "norm", 1.0), Record(1, "norm", 2.0, {"layer": "3"}))
    frame = read_records(path)
    assert frame.schema == pl.Schema(
        {"step": pl.Int64, "name": pl.String, "value": pl.Float64, "layer": pl.String}
    )
    assert frame["layer"].to_list() == [None, "3"]


def test_no_records_and_no_labels(path):
    write(path)
    assert read_records(path).columns == ["step", "name", "value"]
    write(path, Record(0, "a", 1.0))
    assert read_records(path).rows() == [(0, "a", 1.0)]


REFUSALS = """
from orderone.core.errors import ConfigError
from orderone.core.record import Record
bad = [("1", "a", 1.0), (-1, "a", 1.0), (1.5, "a", 1.0), (True, "a", 1.0), (2**63, "a", 1.0),
       (1, 2, 1.0), (1, "\\ud800", 1.0), (1, "a", "1"), (1, "a", None), (1, "a", 1.0, ["x"]),
       (1, "a", 1.0, {"layer": 3}), (1, "a", 1.0, {3: "x"}), (1, "a", 1.0, {"step": "x"}),
       (1, "a", 1.0, {"x": "\\udfff"})]
for each in bad:
    try:
        Record(*each)
    except ConfigError as error:
        assert "\\n" not in str(error)
    else:
        raise SystemExit(f"accepted {each}")
print("all refused")
"""


def test_what_is_not_a_record_is_refused():
    """In a process of its own: here beartype would refuse the types before we can."""
    done = subprocess.run([sys.executable, "-c", REFUSALS], capture_output=True, text=True)
    assert done.stdout.strip() == "all refused", done.stdout + done.stderr


def test_a_torn_tail_is_dropped_on_reading_and_cut_on_appending(path):
    write(path, Record(0, "a", 1.0), Record(1, "a", 2.0))
    whole = path.read_bytes()
    for cut in range(1, len(Record(1, "a", 2.0).to_line()) + 1):
        path.write_bytes(whole[:-cut])
        with pytest.warns(TornRecordWarning):
            assert read_records(path)["step"].to_list() == [0]
        with pytest.warns(TornRecordWarning):
            write(path, Record(7, "b", 3.0))
        assert read_records(path)["step"].to_list() == [0, 7]


def test_a_torn_tail_longer_than_a_buffer_and_alone(path):
    path.write_bytes(b'{"step": 0, "name": "' + b"x" * 200_000)
    with pytest.warns(TornRecordWarning):
        write(path, Record(0, "a", 1.0))
    assert read_records(path).height == 1


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[1]",
        b"5",
        b'{"step": 1, "name": "a", "labels": {}}',
        b'{"step": 1, "name": "a", "value": "x", "labels": {}}',
        b'{"step": "1", "name": "a", "value": 1, "labels": {}}',
        b'{"step": 1.5, "name": "a", "value": 1, "labels": {}}',
        b'{"step": 1, "name": "a", "value": 1, "labels": {"x": 3}}',
        b'{"step": 1, "name": "a", "value": null, "labels": {}}',
        b'{"step": 1, "name": "a", "value": 1}',
        b"\x00\x00\xff",
    ],
)
def test_a_malformed_line_is_named_by_its_number(path, line):
    good = Record(0, "a", 1.0, {"y": "z"}).to_line().encode()
    path.write_bytes(b"\n".join([good, good, line, good]) + b"\n")
    with pytest.raises(RunError, match="line 3 of") as caught:
        read_records(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_folder_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(RunError, match="cannot be written"):
        RecordWriter(tmp_path / "none" / "records.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_line():
    writer = RecordWriter("/dev/full")
    writer.write(Record(0, "a", 1.0))
    with pytest.raises(RunError, match="No space left"):
        writer.flush()


def test_a_write_that_fails_midway_leaves_whole_lines(path, monkeypatch):
    write(path, Record(0, "a", 1.0))
    real, calls = os.write, []

    def short_then_full(handle, data):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(handle, data[:10])

    writer = RecordWriter(path)
    writer.write(Record(1, "a", 2.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short_then_full)
        with pytest.raises(RunError, match="No space left"):
            writer.flush()
    writer.close()
    assert path.read_bytes() == Record(0, "a", 1.0).to_line().encode() + b"\n"


def test_flush_makes_records_visible_and_a_closed_writer_refuses(path):
    writer = RecordWriter(path)
    writer.write(Record(0, "a", 1.0))
    writer.flush(fsync=True)
    assert read_records(path).height == 1
    writer.close()
    with pytest.raises(RunError, match="closed"):
        writer.write(Record(1, "a", 1.0))


def test_records_after_a_step_are_dropped_for_a_resume(path):
    steps = [0, 1, 2, 1, 3]
    with RecordWriter(path) as writer:
        writer.write_all(Record(step, "a", math.inf, {"k": "\u2028"}) for step in steps)
        writer.truncate_after(1)
        assert read_records(path)["step"].to_list() == [0, 1, 1]
        writer.write(Record(2, "again", 0.0))
    assert read_records(path)["step"].to_list() == [0, 1, 1, 2]
    keep_records_until(path, 0)
    assert read_records(path).rows() == [(0, "a", math.inf, "\u2028")]


WRITER = """
import sys
from orderone.core.record import Record, RecordWriter
step = int(sys.argv[2])
with RecordWriter(sys.argv[1], buffer_bytes=1000) as writer:
    print("ready", flush=True)
    while True:
        writer.write(Record(step, "x" * (step % 977), step / 3, {"layer": str(step)}))
        step += 1
"""


def test_kill_at_random_moments_leaves_every_complete_line(path):
    """Twenty kills of one growing file: the steps on disk are 0, 1, 2, … with no gap or tear."""
    draw = random.Random(0)
    written = 0
    for _ in range(4):
        written = kill_once(path, written, draw.uniform(0.001, 0.05))
    for _ in range(16):
        written = kill_forked(path, written, draw.uniform(0.001, 0.02))
    assert written > 1000


def kill_once(path, start, seconds) -> int:
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(path), str(start)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    process.kill()
    process.communicate()
    return check_after_kill(path)


def kill_forked(path, start, seconds) -> int:
    process = os.fork()
    if process == 0:
        with warnings.catch_warnings(action="ignore"):
            writer = RecordWriter(path, buffer_bytes=1000)
        for step in range(start, 10**9):
            writer.write(Record(step, "x" * (step % 977), step / 3, {"layer": str(step)}))
        os._exit(0)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return check_after_kill(path)


def check_after_kill(path) -> int:
    with warnings.catch_warnings(action="ignore", category=TornRecordWarning):
        frame = read_records(path)
    steps = frame["step"].to_list()
    assert steps == list(range(len(steps)))
    assert frame["value"].to_list() == [step / 3 for step in steps]
    assert frame["name"].str.len_chars().to_list() == [step % 977 for step in steps]
    return len(steps)
