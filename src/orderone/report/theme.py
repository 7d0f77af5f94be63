"""One look for every picture: a colour-blind-safe palette, readable sizes, no decoration."""

from typing import Any

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5b5b5b")
"""Okabe and Ito's colours, told apart with every common colour vision; without their yellow."""

BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, GREY = PALETTE

FONT = "Helvetica, Arial, sans-serif"


def configuration() -> dict[str, Any]:
    """Vega-Lite's ``config`` of every chart."""
    text = {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"}
    return {
        "background": "white",
        "font": FONT,
        "axis": {**text, "grid": True, "gridOpacity": 0.4, "labelOverlap": True},
        "legend": {**text, "orient": "bottom", "columns": 4, "labelLimit": 400},
        "title": {"fontSize": 15, "anchor": "start", "subtitleFontSize": 12},
        "range": {"category": list(PALETTE)},
        "view": {"stroke": None},
    }
