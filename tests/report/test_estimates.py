"""Points with bars of their errors."""

import polars as pl
import pytest

from orderone.report.charts import estimates


def picture(errors):
    """Marks of the drawing, and what is said below its title."""
    frame = pl.DataFrame(
        {"head": ["a", "b"], "share": [0.3, 0.5], "se": errors},
        schema_overrides={"se": pl.Float64},
    )
    drawn = estimates(frame, x=("head", "h"), y=("share", "s"), error="se", title="t").to_dict()
    return [layer["mark"]["type"] for layer in drawn["layer"]], drawn["title"]["subtitle"]


@pytest.mark.parametrize("errors", [[0.1, None], [0.1, 0.2]])
def test_bars_are_drawn_and_spoken_of(errors):
    assert picture(errors) == (["rule", "point"], "bars: one standard error")


def test_without_errors_nothing_is_said_of_bars():
    assert picture([None, None]) == (["point"], "")


@pytest.mark.parametrize(
    ("names", "angle"),
    [(["a", "b", "c"], 0), (["neural-tangent", "hybrid", "maximal-update", "standard"], -40)],
)
def test_names_that_a_phone_has_no_room_for_are_turned(names, angle):
    frame = pl.DataFrame({"name": names, "y": [1.0] * len(names), "se": [0.1] * len(names)})
    drawn = estimates(frame, x=("name", "x"), y=("y", "y"), error="se", title="t").to_dict()
    assert drawn["layer"][0]["encoding"]["x"]["axis"]["labelAngle"] == angle
