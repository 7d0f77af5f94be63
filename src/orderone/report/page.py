"""One self-contained HTML page: what was found first, then pictures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from orderone.report.charts import Picture, svg


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


def page(*, title: str, found: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as text. Every string is escaped: names may come from a hostile model or file."""
    environment = Environment(
        loader=PackageLoader("orderone.report"), autoescape=True, trim_blocks=True
    )
    template = environment.get_template("page.html")
    drawn = [
        section if section.chart is None else replace(section, picture=svg(section.chart))
        for section in sections
    ]
    return template.render(title=title, found=found, sections=drawn, markup=Markup)
