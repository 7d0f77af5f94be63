"""A saturated transformer recognises aⁿbⁿcⁿ by counting.

Source   [MRGSS21] §4.2: arg max and mean heads suffice to recognise it
Expect   every string of up to L letters, and long near misses, judged rightly
Cost     smoke 5 s, laptop 1 min on one core
Differs  weights are set by hand, as the paper's argument has it; nothing is trained
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from orderone.asymptotics.constructions import LETTERS, Recognizer, SoftHead, letters
from orderone.asymptotics.interpret import saturated
from orderone.experiments.dry_run import DryRun, untrained
from orderone.experiments.reproduction import Outcome, Stage
from orderone.report.page import Section

PUBLISHED = "saturated transformers can count, and so recognise aⁿbⁿcⁿ"
_BATCH = 4096


def reproduce(stage: Stage) -> Outcome:
    """All strings up to a length, then long strings with one letter wrong."""
    longest = stage.pick(smoke=8, laptop=11, paper=12)
    n = stage.pick(smoke=20, laptop=60, paper=100)
    model = Recognizer(3 * n)
    wrong = tried = 0
    for length in range(1, longest + 1):
        misjudged, count = _all_strings(model, length)
        wrong, tried = wrong + misjudged, tried + count
        stage.record("strings", count, step=length)
        stage.record("misjudged", misjudged, step=length)
        stage.progress(length, longest)
    near_wrong, near = _near_misses(model, n)
    agrees = _limit_agrees(3 * n)
    stage.record("near misses", near)
    stage.record("near misses misjudged", near_wrong)
    return Outcome(
        measured=(
            f"{tried - wrong:,} of {tried:,} strings of up to {longest} letters and "
            f"{near - near_wrong:,} of {near:,} near misses of a^{n}b^{n}c^{n} judged rightly"
        ),
        held=wrong == near_wrong == 0 and agrees,
        why=(
            "The network is the exact limit of one with softmax heads."
            if agrees
            else "The limit of the network with softmax heads is another."
        ),
        sections=[
            Section(
                heading="What was tried",
                columns=("strings", "judged", "wrongly"),
                rows=[
                    (f"all of 1 to {longest} letters", f"{tried:,}", f"{wrong:,}"),
                    (f"a^{n}b^{n}c^{n} with one letter changed", f"{near:,}", f"{near_wrong:,}"),
                ],
            )
        ],
    )


def paper() -> DryRun:
    """Nothing is trained."""
    return untrained("weights are set by hand")


def _all_strings(model: Recognizer, length: int) -> tuple[int, int]:
    """(misjudged, tried) over every string of that length."""
    wrong = tried = 0
    batch: list[tuple[int, ...]] = []
    for string in product(range(len(LETTERS)), repeat=length):
        batch.append(string)
        if len(batch) == _BATCH:
            wrong, tried, batch = wrong + _misjudged(model, batch), tried + len(batch), []
    if batch:
        wrong, tried = wrong + _misjudged(model, batch), tried + len(batch)
    return wrong, tried


@torch.no_grad()
def _misjudged(model: Recognizer, strings: list[tuple[int, ...]]) -> int:
    tokens = torch.tensor(strings)
    return int(((model(tokens) > 0) != _is_anbncn(tokens)).sum())


def _is_anbncn(tokens: Tensor) -> Tensor:
    """By comparison with the one string of that length that is in the language."""
    length = tokens.shape[1]
    if length % 3:
        return torch.zeros(len(tokens), dtype=torch.bool)
    wanted = torch.arange(3).repeat_interleave(length // 3)
    return (tokens == wanted).all(dim=1)


@torch.no_grad()
def _near_misses(model: Recognizer, n: int) -> tuple[int, int]:
    """(misjudged, tried): the word itself, and every word that differs in one place."""
    word = letters("a" * n + "b" * n + "c" * n)[0]
    places = torch.arange(3 * n).repeat_interleave(2)
    changed = word.repeat(6 * n, 1)
    changed[torch.arange(6 * n), places] += torch.tensor([1, 2]).repeat(3 * n)
    strings = torch.cat([word[None], changed % 3])
    return int(((model(strings) > 0) != _is_anbncn(strings)).sum()), len(strings)


def _limit_agrees(T: int) -> bool:
    """Whether the softmax network with Q and K → ∞ is this one, on a short word."""
    soft, hard = Recognizer(T, heads=SoftHead), Recognizer(T)
    word = letters("aabbcc")
    limit = saturated(soft, word, scaled=set(soft.attention_parameters()))
    return bool(torch.allclose(limit.lead, hard(word)))
