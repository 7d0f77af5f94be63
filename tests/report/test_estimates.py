"""Points with bars of their errors."""

import polars as pl
import pytest

from orderone.report.charts import estimates, svg


def picture(errors):
    frame = pl.DataFrame(
        {"head": ["a", "b"], "share": [0.3, 0.5], "se": errors},
        schema_overrides={"se": pl.Float64},
    )
    return svg(estimates(frame, x=("head", "h"), y=("share", "s"), error="se", title="t"))


@pytest.mark.parametrize("errors", [[0.1, None], [0.1, 0.2]])
def test_bars_are_drawn_and_spoken_of(errors):
    text = picture(errors)
    assert "mark-rule" in text
    assert "one standard error" in text


def test_without_errors_nothing_is_said_of_bars():
    text = picture([None, None])
    assert "mark-rule" not in text
    assert "bars" not in text
