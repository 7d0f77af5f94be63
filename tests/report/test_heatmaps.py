"""Heat maps of matrices."""

import polars as pl

from orderone.report.charts import heatmaps, svg


def frame(values):
    return pl.DataFrame(
        [
            {"block": block, "row": f"{i}", "column": f"{j}", "value": x}
            for block, matrix in values.items()
            for i, row in enumerate(matrix)
            for j, x in enumerate(row)
        ]
    )


def picture(values):
    return heatmaps(
        frame(values),
        row="row",
        column="column",
        value=("value", "F"),
        facet="block",
        title="Kernels",
    )


def test_the_scale_is_symmetric_about_zero_and_shared():
    chart = picture({"stem": [[1.0, -3.0], [-3.0, 1.0]], "head": [[2.0]]}).to_dict()
    assert chart["spec"]["encoding"]["color"]["scale"]["domain"] == [-3.0, 0.0, 3.0]
    assert chart["facet"]["sort"] == ["stem", "head"]


def test_numbers_that_are_not_finite_do_not_set_the_scale():
    chart = picture({"stem": [[1.0, float("nan")], [float("inf"), 0.5]]}).to_dict()
    assert chart["spec"]["encoding"]["color"]["scale"]["domain"] == [-1.0, 0.0, 1.0]


def test_every_block_is_drawn():
    text = svg(picture({"stem": [[1.0]], "head": [[0.0]]}))
    assert ">stem<" in text
    assert ">head<" in text
