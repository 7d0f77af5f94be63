"""Columns that a chart can name, whatever their own names are."""

from __future__ import annotations

import altair as alt
import polars as pl

from orderone.report.names import INHERITED

DIGITS = 8
"""Significant digits that go into a picture's data."""


class Columns:
    """A frame for Vega: finite numbers, and columns under plain names.

    Vega reads ``a.b`` and ``a[0]`` in a field's name as paths, and breaks on quotes; JSON has no
    NaN; polars reads ``*`` and ``^…$`` as patterns. ``columns["a.b"]`` is the name to draw by, and
    tooltips show the name that was given.
    """

    def __init__(self, frame: pl.DataFrame) -> None:
        self._names = {name: _plain(name, i) for i, name in enumerate(frame.columns)}
        plain = frame.clone()
        plain.columns = list(self._names.values())  # by place: no name is looked up
        floats = [name for name, kind in plain.schema.items() if kind.is_float()]
        finite = [
            pl.when(pl.col(x).is_finite()).then(pl.col(x).round_sig_figs(DIGITS)).alias(x)
            for x in floats
        ]
        self.frame = plain.with_columns(finite)

    def __getitem__(self, name: str) -> str:
        return self._names[name]

    def tooltip(self, *names: str) -> list[alt.Tooltip]:
        """What a hover shows: those columns, or all, each under its own name."""
        return [self._shown(name) for name in names or tuple(self._names)]

    def _shown(self, name: str) -> alt.Tooltip:
        kind = self.frame.schema[self._names[name]]
        form = ".6~g" if kind.is_float() else ",d" if kind.is_integer() else alt.Undefined
        type_ = "quantitative" if kind.is_numeric() else "nominal"
        return alt.Tooltip(field=self._names[name], type=type_, title=name, format=form)


def _plain(name: str, index: int) -> str:
    # What starts with an underscore may be a field of Vega's or of every object in JavaScript.
    plain = name.isascii() and name.isidentifier() and not name.startswith("_")
    return name if plain and name not in INHERITED else f"column {index}"
