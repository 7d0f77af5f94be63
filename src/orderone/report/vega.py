"""Charts as a browser draws them: specifications with hover, zoom and legend, and the library."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import altair as alt

from orderone.report.names import told_apart
from orderone.report.theme import WIDTH

Picture = alt.Chart | alt.FacetChart | alt.LayerChart
Tree = dict[str, Any]

_EACH_LETTER, _EACH_ENTRY, _LEGEND_LETTERS = 7, 52, 60
"""Pixels of a letter in a legend, and of an entry besides; letters after which one is cut."""
_NEAREST = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
# A plain wheel scrolls the page, as everywhere.
_ZOOM = {"type": "interval", "zoom": "wheel![event.shiftKey]"}


def specification(chart: Picture) -> Tree:
    """Vega-Lite's, with as many rows as there are, and a legend as wide as the panel above it."""
    with alt.data_transformers.enable("default", max_rows=None):
        spec = _named(told_apart(chart.to_dict()))
    if spec.get("width") != WIDTH:
        return spec
    pixels = _EACH_ENTRY + _EACH_LETTER * min(_longest_entry(spec), _LEGEND_LETTERS)
    columns = {"expr": f"max(1, floor(width / {pixels}))"}
    legend = {
        "columns": columns,
        "labelLimit": {"expr": f"max(80, width - {_EACH_ENTRY})"},
        # Two legends one below the other; altair's own classes do not know the setting.
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    }
    config = spec.get("config", {})
    return {**spec, "config": {**config, "legend": {**config.get("legend", {}), **legend}}}


def svg_of(spec: Tree) -> str:
    """The picture as SVG text, drawn without a browser."""
    import vl_convert

    return vl_convert.vegalite_to_svg(json.dumps(spec))


def png_of(spec: Tree) -> bytes:
    """The picture in pixels, two for each of the page's."""
    import vl_convert

    return vl_convert.vegalite_to_png(json.dumps(spec), scale=2.0)


def interactive(spec: Tree) -> Tree:
    """Vega's specification of the picture: what is pointed at tells its numbers.

    A single panel is as wide as its place, moves when dragged, and zooms at Shift and the wheel; an
    entry of its legend singles out what it stands for.
    """
    import vl_convert

    spec = {key: value for key, value in spec.items() if key != "$schema"}
    if spec.get("width") == WIDTH:
        spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        spec = _with_gestures(_with_hover(spec))
    spec["config"] = {**spec.get("config", {}), "background": None}
    made = vl_convert.vegalite_to_vega(json.dumps(spec))
    made.pop("$schema", None)
    for mark in made.get("marks", []):
        _repair(mark)
    return made


def _repair(mark: Tree) -> None:
    """Vega-Lite's cells around points look for a hover's texts in themselves: in their points."""
    for inner in mark.get("marks", []):
        _repair(inner)
    told = mark.get("encode", {}).get("update", {}).get("tooltip", {})
    if str(mark.get("name", "")).endswith("voronoi") and "signal" in told:
        own, point = "datum[", "datum.datum["
        told["signal"] = point.join(
            part.replace(own, point) for part in told["signal"].split(point)
        )


def untitled(spec: Tree) -> tuple[Tree, str, str]:
    """The picture without its title, and the title and subtitle."""
    rest = {key: value for key, value in spec.items() if key != "title"}
    given = spec.get("title", "")
    if isinstance(given, dict):
        return rest, _joined(given.get("text", "")), _joined(given.get("subtitle", ""))
    return rest, _joined(given), ""


def _named(spec: Tree) -> Tree:
    """The picture with what a hover tells under plain keys, and their names beside it.

    Vega-Lite writes the names into an expression, where a backslash or a quote would end a text and
    begin a program; a page puts them back.
    """
    names: dict[str, str] = {}

    def plain(part: Tree) -> Tree:
        made = dict(part)
        told = made.get("encoding", {}).get("tooltip")
        if told is not None:
            each = [key(one) for one in (told if isinstance(told, list) else [told])]
            made["encoding"] = {**made["encoding"], "tooltip": each}
        if "layer" in made:
            made["layer"] = [plain(layer) for layer in made["layer"]]
        if "spec" in made:
            made["spec"] = plain(made["spec"])
        return made

    def key(told: Tree) -> Tree:
        field = told.get("field", f"told {len(names)}")
        names.setdefault(field, told.get("title", field))
        return {**told, "title": field}

    return {**plain(spec), "usermeta": {"names": list(names.items())}}


@cache
def library() -> str:
    """The JavaScript of Vega and of ``vegaEmbed``, for a page that asks nothing of the network."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def in_script(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _longest_entry(spec: Tree) -> int:
    """Letters of the longest text in the columns that give colours and dashes."""
    told = [e.get(c, {}) for e in _encodings(spec) for c in ("color", "strokeDash")]
    fields = [each["field"] for each in told if "field" in each]
    rows = (row for rows in spec.get("datasets", {}).values() for row in rows)
    return max((len(str(row[f])) for row in rows for f in fields if f in row), default=0)


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _encodings(spec: Tree) -> list[Tree]:
    inner = [spec["spec"]] if "spec" in spec else spec.get("layer", [])
    own = [spec["encoding"]] if "encoding" in spec else []
    return own + [each for part in inner for each in _encodings(part)]


def _with_hover(spec: Tree) -> Tree:
    """Of lines, the point nearest to the pointer is shown and tells its numbers.

    Left alone, Vega tells those of a line's first point wherever it is touched.
    """
    if "mark" in spec:
        alone = ("mark", "encoding")
        rest = {key: value for key, value in spec.items() if key not in alone}
        spec = {**rest, "layer": [{key: spec[key] for key in alone}]}
    layers = [dict(layer) for layer in spec.get("layer", [])]
    for line in layers:
        encoding = line.get("encoding", {})
        if _mark(line).get("type") == "line" and "tooltip" in encoding:
            line["encoding"] = {key: each for key, each in encoding.items() if key != "tooltip"}
            return {**spec, "layer": [*layers, _pointed(line, encoding)]}
    return {**spec, "layer": layers} if layers else spec


def _pointed(line: Tree, encoding: Tree) -> Tree:
    """A point, unseen until the pointer is nearest to it, at every place of a line."""
    seen = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    kept = {key: each for key, each in encoding.items() if key != "strokeDash"}
    return {
        **({"data": line["data"]} if "data" in line else {}),
        "mark": {"type": "point", "filled": True, "size": 70},
        "params": [{"name": "near", "select": _NEAREST}],
        "encoding": {**kept, "opacity": seen},
    }


def _with_gestures(spec: Tree) -> Tree:
    """Moving and zooming along measured axes; a click on the legend fades all but its entry."""
    layers = [dict(layer) for layer in spec.get("layer", [])]
    shared = spec.get("encoding", {})
    whole = [{**shared, **layer.get("encoding", {})} for layer in layers]
    for host, encoding in zip(layers, whole, strict=True):
        # The layer that holds a gesture must have the axes and the colours that it is about.
        if {"x", "y"} <= set(encoding):
            host["params"] = [*host.get("params", []), *_gestures(encoding, layers, shared)]
            break
    return {**spec, "layer": layers} if layers else spec


def _gestures(encoding: Tree, layers: list[Tree], shared: Tree) -> list[Tree]:
    """What the pointer can do with these axes and colours; ``layers`` are made to follow."""
    made: list[Tree] = []
    axes = [encoding[channel] for channel in ("x", "y")]
    if all(a.get("type") == "quantitative" and not {"bin", "aggregate"} & set(a) for a in axes):
        made.append({"name": "zoom", "select": _ZOOM, "bind": "scales"})
        for layer in layers:
            layer["mark"] = {**_mark(layer), "clip": True}
    colour = encoding.get("color", {})
    if colour.get("type") == "nominal" and "field" in colour:
        chosen = {"type": "point", "fields": [colour["field"]]}
        made.append({"name": "entry", "select": chosen, "bind": "legend"})
        for layer in layers:
            own = layer.get("encoding", {})
            if "opacity" not in {**_mark(layer), **own} and "color" in {**shared, **own}:
                faded = {"condition": {"param": "entry", "value": 1}, "value": 0.12}
                layer["encoding"] = {**own, "opacity": faded}
    return made


def _mark(spec: Tree) -> Tree:
    mark = spec.get("mark", {})
    return mark if isinstance(mark, dict) else {"type": mark}
