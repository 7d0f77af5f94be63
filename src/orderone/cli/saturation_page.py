"""What ``orderone saturation`` prints, keeps and draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderone.core.record import Record
    from orderone.core.run import RunFolder
    from orderone.experiments.saturation import Curves, Measured
    from orderone.probes.saturation import Level
    from orderone.report.charts import Picture

COMMONEST = 20
"""Tokens that the breakdown shows."""
CURVE = ("c", "cosine", "cross", "without_biases")
DRAWN = {"cosine": "the model", "cross": "another token (cross)", "centred": "mean removed"}
"""Lines of the picture, by the name of the number."""


def as_json(result: Measured) -> dict[str, Any]:
    """The contract of ``--json``."""
    found = result.found
    rows: list[dict[str, Any]] = []
    for index, level in enumerate(found.layers):
        row: dict[str, Any] = {"layer": level.layer, **_level(level)}
        row["random"] = None if found.random is None else _level(found.random[index])
        if result.exact is not None:
            row["exact"] = result.exact.layers[index].cosine
        rows.append(row)
    told = {
        "layers": rows,
        "agreement": found.agreement,
        "collapsed": found.collapsed,
        "sentences": found.sentences,
    }
    return told if result.curves is None else {**told, "curve": _curve(result.curves)}


def _curve(curves: Curves) -> list[dict[str, float | None]]:
    """The last layer at each c."""
    return [
        {
            "c": given.c,
            "cosine": given.layers[-1].cosine,
            "cross": given.layers[-1].cross,
            "without_biases": bare.layers[-1].cosine,
        }
        for given, bare in zip(curves.given, curves.without_biases, strict=True)
    ]


def _level(level: Level) -> dict[str, float | None]:
    names = ("cosine", "se", "other", "cross", "centred")
    return {name: getattr(level, name) for name in names}


def _rows(result: Measured) -> tuple[list[str], list[list[str]]]:
    found = result.found
    columns = ["layer", "cosine", "se", "other", "cross", "centred"]
    columns += [] if found.random is None else ["random", "random se"]
    columns += [] if result.exact is None else ["exact"]
    rows: list[list[str]] = []
    for index, level in enumerate(found.layers):
        row: list[float | None] = list(_level(level).values())
        if found.random is not None:
            row += [found.random[index].cosine, found.random[index].se]
        if result.exact is not None:
            row.append(result.exact.layers[index].cosine)
        rows.append([level.layer, *("" if x is None else f"{x:.3f}" for x in row)])
    return columns, rows


def table(result: Measured) -> list[str]:
    """A line a layer."""
    columns, rows = _rows(result)
    width = max(len(row[0]) for row in [columns, *rows])
    return [
        "  ".join([f"{row[0]:<{width}}", *(f"{each:>9}" for each in row[1:])])
        for row in [columns, *rows]
    ]


def _curve_rows(curves: Curves) -> list[list[str]]:
    return [
        [f"{point['c']:g}", *("" if (x := point[n]) is None else f"{x:.3f}" for n in CURVE[1:])]
        for point in _curve(curves)
    ]


def curve_lines(curves: Curves) -> list[str]:
    """A line each c."""
    rows = [[name.replace("_", " ") for name in CURVE], *_curve_rows(curves)]
    end = "the exact limit" if curves.exact else "c = 1024"
    head = f"Last layer as c grows, against {end}:"
    return [head, *("  ".join(f"{each:>14}" for each in row) for row in rows)]


def by_token(result: Measured) -> list[str]:
    """The commonest tokens with their mean cosine at the last layer."""
    found = result.found.layers[-1].by_token
    ranked = sorted(found, key=lambda token: (-found[token][0], token))[:COMMONEST]
    word = result.sentences.encoder.word
    return [f"  {word(t)!r}: {found[t][1]:.3f} over {found[t][0]}" for t in ranked]


def keep(run: RunFolder, result: Measured, *, title: str) -> None:
    """Records, pictures and page."""
    from orderone.report.charts import save_chart
    from orderone.report.page import Section, page

    with run.writer() as records:
        records.write_all(_records(result))
    chart = _layers_chart(result)
    save_chart(chart, run.path / "saturation.svg")
    columns, rows = _rows(result)
    sections = [
        Section(
            heading="Saturation by layer",
            chart=chart,
            alternative="Cosines of hidden states with the saturated network, by layer",
        ),
        Section(heading="Every layer", columns=columns, rows=rows),
    ]
    if result.curves is not None:
        sections.append(
            Section(
                heading="Last layer as c grows",
                chart=_curve_chart(result.curves),
                alternative="Cosine to the saturated network over c, with and without biases",
                columns=[name.replace("_", " ") for name in CURVE],
                rows=_curve_rows(result.curves),
            )
        )
    text = page(title=title, found=result.found.said, sections=sections)
    (run.path / "report.html").write_text(text, encoding="utf-8")
    run.finish("done", as_json(result))


def _sides(result: Measured) -> dict[str, tuple[Level, ...]]:
    sides = {"model": result.found.layers}
    if result.found.random is not None:
        sides["random"] = result.found.random
    return sides if result.exact is None else {**sides, "exact": result.exact.layers}


def _records(result: Measured) -> Iterator[Record]:
    from orderone.core.record import Record

    for side, levels in _sides(result).items():
        for level in levels:
            for name, value in _level(level).items():
                if value is not None:
                    labels = {"layer": level.layer, "network": side}
                    yield Record(0, f"saturation.{name}", value, labels)
    for point in _curve(result.curves) if result.curves is not None else []:
        for name in CURVE[1:]:
            value = point[name]
            if value is not None:
                yield Record(0, f"saturation.curve.{name}", value, {"c": f"{point['c']:g}"})


def _layers_chart(result: Measured) -> Picture:
    import polars as pl

    from orderone.report.charts import lines

    points: list[dict[str, Any]] = []
    for index, level in enumerate(result.found.layers):
        found = {what: getattr(level, name) for name, what in DRAWN.items()}
        if result.found.random is not None:
            found["random initialisation"] = result.found.random[index].cosine
        if result.exact is not None:
            found["the model, exact limit"] = result.exact.layers[index].cosine
        points += [{"layer": index, "what": w, "cosine": x} for w, x in found.items()]
    return lines(
        pl.DataFrame(points),
        x=("layer", "layer, in the order computed"),
        y=("cosine", "cosine"),
        colour=("what", "to the saturated network"),
        title="Saturation by layer",
        subtitle=f"{result.found.sentences} sentences, c = {result.found.c:g}",
        points=True,
    )


def _curve_chart(curves: Curves) -> Picture:
    import polars as pl

    from orderone.report.charts import lines

    labels = {"cosine": "as it is", "without_biases": "without biases", "cross": "another token"}
    points = [
        {"c": point["c"], "what": what, "cosine": point[name]}
        for point in _curve(curves)
        for name, what in labels.items()
    ]
    return lines(
        pl.DataFrame(points),
        x=("c", "c, what parameters are multiplied by"),
        y=("cosine", "cosine to the saturated network"),
        colour=("what", "network"),
        title="Last layer as c grows",
        log_x=True,
        points=True,
    )
