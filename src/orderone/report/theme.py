"""One look for every picture: a colour-blind-safe palette, readable sizes, no decoration."""

from __future__ import annotations

from typing import Any

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b5b5b")
"""Okabe and Ito's colours, told apart with every common colour vision; without their yellow."""

BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, GREY = PALETTE

DARK = ("#3d86e6", "#cf6824", "#33df78", "#ab73ab", "#93eeff", "#fac613", "#a8948a")
"""The same hues, in the same order, on a dark page; told apart as well."""

FONT = "Helvetica, Arial, sans-serif"
WIDTH, HEIGHT = 560, 300
"""Of one panel's axes in pixels; on a page a panel of this width becomes as wide as the page."""

NARROW = 280
"""What a telephone leaves of it."""

_INK, _LINES, _GRID = "#000", "#888", "#ddd"  # what Vega draws text, axes and grid with


def configuration() -> dict[str, Any]:
    """Vega-Lite's ``config`` of every chart."""
    text = {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"}
    return {
        "background": "white",
        # Its descriptions are made of names, as expressions; a page describes a picture itself.
        "aria": False,
        "font": FONT,
        # Labels at the ends stay where they belong: moved inwards they would meet their neighbours.
        "axis": {
            **text,
            "grid": True,
            "gridOpacity": 0.4,
            "labelOverlap": True,
            "labelSeparation": 4,
            "labelFlush": False,
            "titlePadding": 8,
        },
        "legend": {
            **text,
            "orient": "bottom",
            "columns": 4,
            "columnPadding": 16,
            "labelLimit": 400,
            "symbolOpacity": 1,
        },
        "title": {"fontSize": 15, "anchor": "start", "subtitleFontSize": 12},
        "range": {"category": list(PALETTE)},
        "mark": {"color": BLUE},
        "rule": {"color": BLUE},
        "view": {"stroke": None},
    }


def dark_rules(within: str) -> str:
    """Style rules that turn a picture drawn for white paper into one for a dark page.

    A rule outweighs an attribute of SVG, so one picture serves both, the browser's own drawing and
    ours alike.
    """
    turned = {**dict(zip(PALETTE, DARK, strict=True)), _LINES: "#8b9098", _GRID: "#50555e"}
    rules = [f"{within} svg text {{ fill: #e6e6e6; }}"]
    for light, dark in turned.items():
        for what in ("fill", "stroke"):
            rules.append(f'{within} svg [{what}="{light}"] {{ {what}: {dark}; }}')
    rules.append(f'{within} svg [stroke="{_INK}"] {{ stroke: #e6e6e6; }}')
    return "\n".join(rules)
