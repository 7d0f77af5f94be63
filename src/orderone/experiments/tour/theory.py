"""Theory against measurement: kernels at infinite width, and those of networks that are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
from torch import Tensor

from orderone.core.record import Record, RecordWriter
from orderone.experiments.agreement import Agreement, Comparison, agreement
from orderone.experiments.tour.size import Size
from orderone.experiments.tour.stop import Progress, Stop
from orderone.report.charts import estimates
from orderone.report.page import Section
from orderone.theory.spec import KernelSpec

WORDS = [[1, 2, 3, 4, 2, 5], [1, 6, 3, 2, 7, 4]]
"""Two texts of six words, some in common: their kernels are neither equal nor apart."""
HEADS = 4
DRAWN = {"G": "G, signal", "Theta": "Θ, tangent"}


def agreed(size: Size, seed: int, records: RecordWriter, progress: Progress) -> Stop:
    """G, F and Θ of every block of a small decoder, predicted and measured."""
    spec = KernelSpec(
        stem="language",
        inputs=WORDS,
        encoders=min(2, size.encoders),
        causal=True,
        head_tied=False,
        samples=size.samples,
        seed=seed,
    )
    found = agreement(spec, size.widths, networks=size.networks, heads=HEADS, progress=progress)
    for each in found.comparisons:
        labels = {"kernel": each.quantity, "block": each.block, "width": str(each.width)}
        records.write(Record(each.place, "overlap with theory", each.overlap, labels))
        for stray in each.strays:
            records.write(Record(each.place, "error of one network", stray, labels))
    slopes = {name: _slope(found, name) for name in DRAWN}
    return Stop(
        name="theory",
        found=f"Theory: {_said(found, slopes)}",
        numbers={
            "verdict": found.verdict,
            "comparisons": len(found.widest),
            "disagreeing": len([each for each in found.disagreeing if each in found.widest]),
            "slopes": slopes,
        },
        sections=[_errors(found), _blocks(found)],
    )


def _said(found: Agreement, slopes: dict[str, float | None]) -> str:
    widest = max(found.widths)
    apart = [each for each in found.disagreeing if each.width == widest]
    agree = f"{len(found.widest) - len(apart)} of {len(found.widest)} kernels agree"
    falls = " and ".join(
        f"n^{slope:+.2f} for {name.replace('Theta', 'Θ')}"
        for name, slope in slopes.items()
        if slope is not None
    )
    return (
        f"measured on {found.networks} random networks of width {widest}, {agree} with those of "
        f"infinite width; what a single network is off by goes as {falls}, expected n^-0.50."
    )


def _last(found: Agreement, quantity: str) -> tuple[Comparison, ...]:
    """Of the last residual path, or of the head where a kernel is the head's: every width."""
    place = max(each.place for each in found.comparisons if each.quantity == quantity)
    return tuple(e for e in found.comparisons if (e.quantity, e.place) == (quantity, place))


def _slope(found: Agreement, quantity: str) -> float | None:
    slope = found.slope(quantity, _last(found, quantity)[0].block)
    return None if slope is None else slope.value


def _errors(found: Agreement) -> Section:
    """Mean error of a single network over widths, beside n^−½ through the narrowest."""
    rows = [row for name in DRAWN for row in _over_widths(_last(found, name), DRAWN[name])]
    schema = ["width", "error", "se", "kernel", "expected"]
    chart = estimates(
        pl.DataFrame(rows, schema=schema, orient="row"),
        x=("width", "width n"),
        y=("error", "relative error of one network"),
        error="se",
        colour=("kernel", "kernel"),
        reference=("expected", "n^−½"),
        title="How far a single network is from infinite width",
        subtitle=f"At the output; mean of {found.networks} networks",
        log_x=True,
        log_y=True,
    )
    return Section(
        heading="Before: theory against measurement",
        text="A random network's kernels scatter about the prediction, less so the wider it is.",
        chart=chart,
        alternative="Relative error of the kernels of a single network, falling with its width",
    )


def _over_widths(series: Sequence[Comparison], label: str) -> list[tuple[object, ...]]:
    means = [math.fsum(each.strays) / len(each.strays) for each in series]
    first = means[0] * series[0].width ** 0.5
    return [
        (each.width, mean, _error(each.strays, mean), label, first / each.width**0.5)
        for each, mean in zip(series, means, strict=True)
    ]


def _error(values: Sequence[float], mean: float) -> float:
    """Standard error of the mean."""
    squares = math.fsum((value - mean) ** 2 for value in values)
    return (squares / (len(values) - 1) / len(values)) ** 0.5


def _blocks(found: Agreement) -> Section:
    """Every comparison at the largest width."""
    return Section(
        heading="Before: every block",
        text=(
            f"Means over the diagonal at width {max(found.widths)}. Overlap is ⟨measured, "
            "predicted⟩ / ‖predicted‖², 1 where they are equal, with its standard error."
        ),
        columns=("block", "kernel", "predicted", "measured", "overlap", "±", "agree"),
        rows=[
            (
                each.block,
                each.quantity.replace("Theta", "Θ"),
                f"{_diagonal(each.predicted.value):.3f}",
                f"{_diagonal(each.measured.value):.3f}",
                f"{each.overlap:.3f}",
                f"{each.overlap_se:.3f}",
                "yes" if each.agrees else "no",
            )
            for each in sorted(found.widest, key=lambda each: each.place)
        ],
    )


def _diagonal(K: Tensor) -> float:
    return float(K.diagonal().mean())
