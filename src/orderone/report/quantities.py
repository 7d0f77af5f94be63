"""Quantities of records: what each is called, and which kind of picture shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

Shape = Literal["course", "across", "places", "grid", "matrices", "number"]

EVENTS = ("spike", "shift", "rollback")
ACCOUNTS = {
    "norm_if_misaligned": "if steps are misaligned: √(‖θ_0‖² + Σ‖δ‖²)",
    "norm_if_aligned": "if steps are aligned: ‖θ_0‖ + Σ‖δ‖",
}
"""What a watch says beside the norm; drawn with it."""
AXES = ("c", "lr", "width", "n", "C", "depth")
"""Labels that are numbers, drawn along an axis."""
REPEATS = ("seed",)
"""Labels that tell repetitions apart: their mean is drawn."""
SAID = ("steps", "se")
"""Labels that say something of a record's own value and tell no series apart."""
MOST = 7
"""Series that one picture's colours tell apart."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """How a name of our own is shown."""

    heading: str
    label: str
    log: bool = False


KNOWN = {
    "loss": Known(heading="Loss", label="loss (nats)"),
    "accuracy": Known(heading="Accuracy", label="share of right answers"),
    "norm": Known(heading="Norm", label="‖θ‖"),
    "norm_of_everything": Known(heading="Norm of all parameters", label="‖θ‖"),
    "relative_step": Known(heading="Relative step", label="‖δ‖ / ‖θ‖", log=True),
    "alignment": Known(heading="Alignment of the step", label="cos(δ, θ)"),
    "one_minus_cosine": Known(heading="Turn of direction", label="1 − cos(θ_t, θ_t+1)", log=True),
    "cosine_next": Known(heading="Direction", label="cos(θ_t, θ_t+1)"),
    "step_norm": Known(heading="Step", label="‖δ‖", log=True),
    "accounts": Known(heading="Norm, and what its steps would make of it", label="‖θ‖"),
    "gradient_norm_before_clipping": Known(
        heading="Gradient before clipping", label="‖g‖", log=True
    ),
    "gradient_norm_after_clipping": Known(heading="Gradient after clipping", label="‖g‖", log=True),
    "norm_if_misaligned": Known(heading="Norm if steps are misaligned", label="√(‖θ_0‖² + Σ‖δ‖²)"),
    "norm_if_aligned": Known(heading="Norm if steps are aligned", label="‖θ_0‖ + Σ‖δ‖"),
    "step_untrusted": Known(heading="Share of the step that is rounding", label="share"),
    "lr": Known(heading="Learning rate", label="learning rate"),
    "rms": Known(heading="Sizes by width", label="root mean square", log=True),
    "saturation.cosine": Known(heading="Saturation", label="cosine to the saturated network"),
    "G": Known(heading="Kernel G", label="G"),
    "F": Known(heading="Layer-normalised kernel F", label="F"),
    "Theta": Known(heading="Tangent kernel Θ", label="Θ"),
}
"""In the order of a page; names that are not here follow, as they come."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """All records of one name."""

    name: str
    frame: pl.DataFrame
    """Columns run, step, value and those of ``keys``; finite values only."""
    keys: dict[str, str]
    """Column → label key, of labels that tell these records apart."""
    lost: int
    """Values that were not finite."""

    @property
    def known(self) -> Known:
        """How it is shown."""
        words = self.name.replace("_", " ").replace(".", ": ")
        plain = Known(heading=words[:1].upper() + words[1:], label=words)
        return KNOWN.get(self.name, plain)

    @property
    def shape(self) -> Shape:
        """Which picture shows it."""
        keys = set(self.keys.values())
        steps = self.frame["step"].n_unique()
        if {"row", "column"} <= keys:
            return "matrices"
        if {"layer", "head"} <= keys and steps == 1:
            return "grid"
        if self.axis is not None and self.axis[1] in AXES:
            return "across"
        if steps > 1:
            return "course"
        if not keys - set(REPEATS):
            return "number"
        return "places" if self.axis is None else "across"

    @property
    def is_level(self) -> bool:
        """Whether it is one number at every step: a table says it as well."""
        return self.shape == "course" and self.frame["value"].n_unique() == 1

    @property
    def axis(self) -> tuple[str, str] | None:
        """(column, key) of a label that is a number everywhere, ours first."""
        numeric = [(column, key) for column, key in self.keys.items() if self._is_number(column)]
        ours = [each for each in numeric if each[1] in AXES]
        others = [each for each in numeric if each[1] not in REPEATS]
        return next(iter(ours or others), None)

    def column(self, key: str) -> str | None:
        """The column of a label key."""
        return next((column for column, each in self.keys.items() if each == key), None)

    def series(self, *, without: Sequence[str] = (), runs: bool) -> pl.DataFrame:
        """The frame with ``series``: a text of its labels but those ``without``, and of its run."""
        kept = [
            column
            for column, key in self.keys.items()
            if column not in without and key not in (*REPEATS, "by")
        ]
        parts = [pl.col("run")] if runs else []
        parts += [pl.col(column).fill_null("") for column in kept]
        text = pl.concat_str(parts, separator=" · ") if parts else pl.lit("")
        bare = text.str.strip_chars(" ·")
        named = pl.when(bare == "").then(pl.lit(self.known.label)).otherwise(bare)
        return self.frame.with_columns(named.alias("series"))

    def _is_number(self, column: str) -> bool:
        values = self.frame[column].unique().cast(pl.Float64, strict=False)
        return len(values) > 1 and not values.is_null().any()


def quantities(records: pl.DataFrame, keys: dict[str, str]) -> list[Quantity]:
    """One each name but events, in the order of a page."""
    if records.is_empty():
        return []
    parts = records.partition_by("name", as_dict=True, maintain_order=True)
    made = {
        str(name): _quantity(str(name), frame, keys)
        for (name,), frame in parts.items()
        if name not in EVENTS
    }
    if {"norm", *ACCOUNTS} <= set(made) and made["norm"].column("by") is not None:
        made["accounts"] = _accounts(made)
    order = [*(name for name in KNOWN if name in made), *(n for n in made if n not in KNOWN)]
    return [made[name] for name in order]


def events(records: pl.DataFrame, keys: dict[str, str]) -> pl.DataFrame:
    """Spikes, shifts and rollbacks: run, step, what, which, height."""
    if records.is_empty():
        return pl.DataFrame(schema={"run": pl.String, "step": pl.Int64, "what": pl.String})
    which = next((pl.col(column) for column, key in keys.items() if key == "which"), pl.lit(None))
    return records.filter(pl.col("name").is_in(EVENTS)).select(
        "run", "step", pl.col("name").alias("what"), which.alias("of"), "value"
    )


def _quantity(name: str, frame: pl.DataFrame, keys: dict[str, str]) -> Quantity:
    finite = frame.filter(pl.col("value").is_finite())
    telling = {
        column: key
        for column, key in keys.items()
        if key not in SAID and frame[column].n_unique() > 1
    }
    return Quantity(
        name=name,
        frame=finite.select("run", "step", "value", *telling),
        keys=telling,
        lost=len(frame) - len(finite),
    )


def _accounts(found: dict[str, Quantity]) -> Quantity:
    """The norm of everything watched beside both accounts of its growth, [MRGSS21] §5.3, (E.2)."""
    by = found["norm"].column("by") or ""
    parts = [
        found[name]
        .frame.filter(pl.col(by) == "total")
        .select("run", "step", "value", account=pl.lit(text))
        for name, text in {"norm": "measured", **ACCOUNTS}.items()
    ]
    lost = sum(found[name].lost for name in ACCOUNTS)
    return Quantity(name="accounts", frame=pl.concat(parts), keys={"account": "account"}, lost=lost)


def spread(names: Sequence[str], count: int = MOST) -> list[str]:
    """Few of many, in their order: totals first, then evenly, first and last among them."""
    totals = [name for name in names if name in ("total", "everything")]
    rest = [name for name in names if name not in totals]
    room = max(0, count - len(totals))
    if len(rest) > room:
        last = max(1, room - 1)
        rest = [rest[round(i * (len(rest) - 1) / last)] for i in range(room)]
    return [*totals, *rest]
