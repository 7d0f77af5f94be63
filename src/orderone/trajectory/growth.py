"""Which law a norm grows by, and whether the data can tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orderone.trajectory.laws import BEND, LAWS, MISALIGNED, Fit, Law, fit

Float = npt.NDArray[np.float64]

_FEWEST = 6  # points below which no law is told from another
# How much better a law of more parameters must be: by AICc alone luck would do once in six.
_MARGINS = {"power": 6.0, "turns": 10.0, BEND: 10.0}
# A difference of AICc below which two laws are alike, odds of 20 to 1: from 2 on, a third of short
# random walks that had hardly left their beginning were wrongly named, and as certain.
_TELLING = 6.0
_WARM_UP_MARGIN = 20.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The laws of one group's norm, on checkpoints from ``start`` on."""

    fits: dict[str, Fit]
    criteria: dict[str, float]
    """AICc of each law; less is better."""
    start: int
    """The first checkpoint used: those before it are warm-up."""
    first_step: int
    best: str | None
    sure: bool
    rival: str | None = None
    verb: str = "grows"
    form: str | None = None
    """Which of the fits ``best`` is: √t is also '√t from the start on'."""

    @property
    def fit(self) -> Fit | None:
        """The fit of the best law."""
        return None if self.form is None else self.fits[self.form]

    @property
    def sentence(self) -> str:
        chosen = self.fit
        if self.best is None or chosen is None:
            return "too few checkpoints, or no change, to tell a law of growth"
        after = f" from step {self.first_step:,} on" if self.start else ""
        if self.best == "turns":
            return f"the norm turns{after}: no law of growth"
        text = f"{self.verb} as {_FORMULAS[self.best]}{after}, r² {_r2(chosen.r2)}"
        if self.best == "power":
            low, high = chosen.interval or (float("nan"), float("nan"))
            verb = self.verb if chosen.shape > 0 else f"levels off at {chosen.coefficients[1]:.4g}"
            text = f"{verb} as t^{chosen.shape:.2f}{after} ({low:.2f} to {high:.2f}), "
            text += f"r² {_r2(chosen.r2)}"
        if chosen.r2 < 0.9:
            text += ", which is poor: no law here describes it"
        if not self.sure and self.rival is not None:
            text += f"; the data can't tell this from {_FORMULAS[self.rival]}"
        return text

    def as_json(self) -> dict[str, Any]:
        laws: dict[str, Any] = {}
        for name, each in self.fits.items():
            laws[_FORMS.get(name, name)] = {
                "r2": each.r2,
                "aicc": self.criteria[name],
                "coefficients": list(each.coefficients),
                "correlation": each.correlation,
            }
            if name == "power":
                laws["power"] |= {"p": each.shape, "p_interval": list(each.interval or ())}
        laws["best"] = self.best
        laws["form"] = self.form and _FORMS.get(self.form, self.form)
        laws["sure"] = self.sure
        laws["from"] = self.first_step
        laws["sentence"] = self.sentence
        return laws


_EXPONENTS = {"sqrt": 0.5, MISALIGNED: 0.5, "linear": 1.0, "fourth-root": 0.25}
_FORMS = {MISALIGNED: "sqrt-from-start", BEND: "turns-gently"}

_FORMULAS = {
    "sqrt": "√t",
    "linear": "t",
    "fourth-root": "t^¼",
    "log": "log t",
    "power": "a power of t",
    "exp-sqrt": "exp(c√t)",
    "turns": "a norm that turns",
}


def growth(steps: Float, norm: Float, start_step: float | None = None) -> Growth:
    """The laws on a norm series; warm-up ends at ``start_step``, or where it is found to.

    Each excluded checkpoint costs the criterion a parameter, as if it had one of its own.
    """
    usable = np.isfinite(norm) & (steps >= (0 if start_step is None else start_step))
    offset = int(np.argmax(usable)) if usable.any() else 0
    t, y = steps[usable].astype(np.float64), norm[usable]
    if len(t) < _FEWEST or np.ptp(y) <= 1e-9 * np.max(np.abs(y)) or t[-1] <= 0:
        first = int(t[0]) if len(t) else 0
        return Growth(fits={}, criteria={}, start=offset, first_step=first, best=None, sure=False)
    skipped = 0 if start_step is not None else _warm_up(t, y)
    fits, criteria = _compared(t[skipped:], y[skipped:])
    best, rival = _chosen(criteria, fits)
    sure = rival is None or criteria[rival] - criteria[best] > _TELLING
    return Growth(
        fits=fits,
        criteria=criteria,
        start=offset + skipped,
        first_step=int(t[skipped]),
        best=_key(best),
        form=best,
        sure=sure,
        rival=None if rival is None else _key(rival),
        verb="grows" if y[-1] > y[skipped] else "shrinks",
    )


def _compared(
    t: Float, y: Float, laws: Sequence[Law] = LAWS
) -> tuple[dict[str, Fit], dict[str, float]]:
    tried = {law.name: fit(law, t, y) for law in laws}
    fits = {name: each for name, each in tried.items() if each is not None}
    return fits, {
        name: _aicc(each.deviance, each.parameters, len(y)) for name, each in fits.items()
    }


def _aicc(deviance: float, parameters: int, points: int) -> float:
    spare = points - parameters - 1
    if spare <= 0:
        return float("inf")
    return deviance + 2 * parameters + 2 * parameters * (parameters + 1) / spare


def _chosen(criteria: dict[str, float], fits: dict[str, Fit]) -> tuple[str, str | None]:
    """The best law, and the best of another name that is no special case of it."""
    plain = {name: value for name, value in criteria.items() if name not in _MARGINS}
    handicapped = {name: value + _MARGINS.get(name, 0.0) for name, value in criteria.items()}
    if "power" in fits and _is_plain(fits["power"], plain):
        handicapped.pop("power")
    best = min(handicapped, key=lambda name: handicapped[name])
    rivals = [name for name in plain if _key(name) != _key(best)]
    rival = min(rivals, key=lambda name: plain[name]) if rivals else None
    return best, rival


def _is_plain(power: Fit, plain: dict[str, float]) -> bool:
    """Whether the free exponent is that of the best plain law but for a fiftieth.

    Points without noise tell 0.495 from 0.5 with certainty; it is still growth as √t.
    """
    exponent = _EXPONENTS.get(min(plain, key=lambda name: plain[name]))
    return exponent is not None and abs(power.shape - exponent) <= 0.02


def _key(name: str) -> str:
    """√t from the start on is √t too."""
    return {MISALIGNED: "sqrt", BEND: "turns"}.get(name, name)


def _warm_up(t: Float, y: Float) -> int:
    """How many checkpoints to leave out: none, unless the laws fit far better without them."""
    points = len(t)
    most = min(points // 4, points - 2 * _FEWEST)
    plain = [law for law in LAWS if law.name not in _MARGINS]
    candidates = sorted({round(most * part) for part in (0.1, 0.25, 0.5, 1)} | {0})
    candidates = [skipped for skipped in candidates if skipped >= 0]
    best, chosen = np.inf, 0
    for skipped in candidates:
        fits, _ = _compared(t[skipped:], y[skipped:], plain)
        value = min(
            points * each.deviance / (points - skipped) + 2 * (each.parameters + skipped)
            for each in fits.values()
        )
        if value < best - (_WARM_UP_MARGIN if chosen == 0 and skipped else 0.0):
            best, chosen = value, skipped
    return chosen


def _r2(value: float) -> str:
    return f"{value:.6f}" if value > 0.999 else f"{value:.3f}"
