"""A page is one file that no string from outside can break, and a chart shows what it was given."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from orderone.core.errors import ConfigError
from orderone.report.charts import lines, save_chart, svg
from orderone.report.page import Section, page

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    return tags


def frame(label: str = "train") -> pl.DataFrame:
    return pl.DataFrame({"step": [1, 2, 3], "value": [3.0, 2.0, 1.5], "split": [label] * 3})


def chart(label: str = "train", **options: bool):
    colour = ("split", "text")
    return lines(
        frame(label),
        x=("step", "step"),
        y=("value", "loss (nats)"),
        colour=colour,
        title=label,
        **options,
    )


def test_hostile_strings_stay_text() -> None:
    section = Section(
        heading=HOSTILE,
        text=HOSTILE,
        picture=svg(chart(HOSTILE)),
        alternative=HOSTILE,
        columns=[HOSTILE],
        rows=[[HOSTILE]],
    )
    tags = parsed(page(title=HOSTILE, found=[HOSTILE], sections=[section]))
    assert tags.seen.count("script") == 1  # the page's own
    assert "img" not in tags.seen
    assert not [name for name in tags.attributes if name.startswith("on")]


def test_page_asks_nothing_of_the_network() -> None:
    html = page(title="t", found=["f"], sections=[Section(heading="h", picture=svg(chart()))])
    tags = parsed(html)
    assert "link" not in tags.seen
    assert "src" not in tags.attributes


def test_chart_states_its_labels_and_logarithms() -> None:
    specification = chart(log_y=True).to_dict()
    assert specification["encoding"]["y"]["title"] == "loss (nats)"
    assert specification["encoding"]["y"]["scale"]["type"] == "log"
    assert "loss (nats)" in svg(chart(log_y=True))


@pytest.mark.parametrize(
    ("name", "magic"), [("a.svg", b"<svg"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")]
)
def test_saved_picture_is_of_the_format_its_name_says(
    name: str, magic: bytes, tmp_path: Path
) -> None:
    save_chart(chart(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.bmp"):
        save_chart(chart(), tmp_path / "a.bmp")
