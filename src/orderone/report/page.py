"""One self-contained HTML page: what was found first, then pictures and tables."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from orderone.report.theme import dark_rules
from orderone.report.vega import (
    Picture,
    Tree,
    in_script,
    interactive,
    library,
    png_of,
    specification,
    svg_of,
    untitled,
)

INTERACTIVE_BYTES = 1_500_000
"""Of all charts that answer to a pointer; those after them are pictures only."""
VECTOR_BYTES = 150_000
"""Of a picture in SVG; a larger one, a matrix of thousands of squares, is in pixels."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with any of a text, a drawn chart and a table below it."""

    heading: str
    text: str = ""
    chart: Picture | None = None
    picture: str = ""
    """SVG text that this room drew; the only string that goes into the page unescaped."""
    alternative: str = ""
    """What the picture shows, in words."""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    code: str = ""
    """Text to be copied as it is: a command, a file."""
    folded: bool = False
    """Whether the section is shown as its heading alone until it is opened."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A sentence of what was found, with the verdict that it gives."""

    text: str
    held: bool | None
    """None where it cannot be told."""

    @property
    def mark(self) -> str:
        """The verdict in one word, which its colour repeats."""
        return {True: "held", False: "not held", None: "open"}[self.held]

    @property
    def kind(self) -> str:
        """Name of the mark's style."""
        return {True: "held", False: "missed", None: "open"}[self.held]


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """A picture as the template takes it."""

    picture: str
    title: str = ""
    subtitle: str = ""
    alternative: str = ""
    data: str = ""
    """JSON of what a browser draws it from; empty for a picture only."""


def page(*, title: str, found: Sequence[str | Found], sections: Sequence[Section]) -> str:
    """The page as text. Every string is escaped: names may come from a hostile model or file."""
    environment = Environment(
        loader=PackageLoader("orderone.report"), autoescape=True, trim_blocks=True
    )
    template = environment.get_template("page.html")
    drawn = _drawn(sections)
    scripts = [_asset("page.js")]
    if any(figure is not None and figure.data for _, figure in drawn):
        scripts.insert(0, library())
    return template.render(
        title=title,
        found=[each if isinstance(each, Found) else {"text": each} for each in found],
        sections=drawn,
        style=Markup(_style()),
        scripts=[Markup(script) for script in scripts],
        allowed=" ".join(map(_hash, scripts)),
        markup=Markup,
    )


def _drawn(sections: Sequence[Section]) -> list[tuple[Section, _Figure | None]]:
    found: list[tuple[Section, _Figure | None]] = []
    left = INTERACTIVE_BYTES
    for section in sections:
        figure = _figure(section, left)
        left -= 0 if figure is None else len(figure.data)
        found.append((section, figure))
    return found


def _figure(section: Section, left: int) -> _Figure | None:
    """The section's picture; for a browser to draw too where its data are no more than ``left``."""
    words = section.alternative or section.heading
    if section.chart is None:
        return _Figure(picture=section.picture, alternative=words) if section.picture else None
    spec, title, subtitle = untitled(specification(section.chart))
    data = in_script(interactive(spec))
    return _Figure(
        picture=_still(spec, words),
        title="" if title == section.heading else title,
        subtitle=subtitle,
        alternative=words,
        data=data if len(data) <= left else "",
    )


def _still(spec: Tree, words: str) -> str:
    """The picture without a browser's help, as SVG or, where that would be large, as PNG."""
    text = svg_of(spec)
    if len(text) <= VECTOR_BYTES:
        return text
    data = b64encode(png_of(spec)).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(data, words)


def _style() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{dark_rules('figure')}\n}}"
    return f"{_asset('page.css')}\n{dark}"


@cache
def _asset(name: str) -> str:
    return (files("orderone.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What the page's policy knows a script by: no other one runs, whatever a name may hold."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{b64encode(digest).decode()}'"
