"""Which number in a checkpoint's name is its step.

A number behind a word such as 'step' counts before one behind 'epoch'; without such words the last
number that differs between the names counts. 'step-1000', '0001000', 'epoch=3-step=1200',
'ep0-ba1200' and 'tokens-4B' all say what they mean.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from orderone.core.errors import ConfigError

_NUMBER = re.compile(r"\d+(?:\.\d+(?=[kKmMbB](?![A-Za-z0-9])))?(?:[kKmMbB](?![A-Za-z0-9]))?")
_THOUSANDS = {"k": 10**3, "m": 10**6, "b": 10**9}
# The nearest to a count of updates first.
_WORDS = (
    ("step", "steps", "st"),
    ("iter", "iters", "iteration", "iterations", "it"),
    ("update", "updates", "num_updates"),
    ("batch", "batches", "ba"),
    ("checkpoint", "ckpt", "chkpt", "checkpoints"),
    ("tokens", "token", "samples", "examples"),
    ("epoch", "epochs", "ep"),
)
_RANKS = {word: rank for rank, words in enumerate(_WORDS) for word in words}
_WORD_BEFORE = re.compile(r"([A-Za-z]+)[-_=.]{0,2}$")


def steps_of(names: Sequence[str], order: str | Sequence[str] | None = None) -> list[int | None]:
    """The step of each name; None where it has none.

    ``order`` overrides the rule: a regular expression whose first group is the number, or the
    names themselves in their order.
    """
    if order is None:
        return _by_rule(names)
    if isinstance(order, str):
        return _by_expression(names, order)
    places: Mapping[str, int] = {name: place for place, name in enumerate(order)}
    unknown = sorted(set(order) - set(names))
    if unknown or len(places) != len(order):
        raise ConfigError(
            f"order names {unknown[0]!r}" if unknown else "order names a checkpoint twice",
            expected=f"each at most once, out of {', '.join(sorted(names)[:5])}, …",
            do="correct the list",
        )
    return [places.get(name) for name in names]


def _by_expression(names: Sequence[str], expression: str) -> list[int | None]:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise ConfigError(
            f"order {expression!r} ({error})",
            expected="a regular expression such as 'tokens(\\d+)B'",
            do="correct it",
        ) from error
    found = [pattern.search(name) for name in names]
    texts = [match[1 if pattern.groups else 0] if match else None for match in found]
    return [_value(text) if text and _NUMBER.fullmatch(text) else None for text in texts]


def _by_rule(names: Sequence[str]) -> list[int | None]:
    numbers = [_numbers(name) for name in names]
    numbered = [each for each in numbers if each]
    ranks = Counter(rank for each in numbered for rank in {rank for rank, _ in each})
    common = [rank for rank, n in ranks.items() if rank < len(_WORDS) and 2 * n >= len(numbered)]
    if common:
        rank = min(common)
        return [next((v for r, v in each if r == rank), None) for each in numbers]
    template = Counter(_template(name) for name, each in zip(names, numbers, strict=True) if each)
    if not template:
        return [None] * len(names)
    usual = template.most_common(1)[0][0]
    same = [
        each if _template(name) == usual else [] for name, each in zip(names, numbers, strict=True)
    ]
    columns = list(zip(*[[value for _, value in each] for each in same if each], strict=True))
    varying = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    place = varying[-1] if varying else len(columns) - 1
    return [each[place][1] if each else None for each in same]


def _numbers(name: str) -> list[tuple[int, int]]:
    """Each number with the rank of the word before it."""
    found: list[tuple[int, int]] = []
    for match in _NUMBER.finditer(name):
        word = _WORD_BEFORE.search(name[: match.start()])
        rank = _RANKS.get(word[1].lower(), len(_WORDS)) if word else len(_WORDS)
        found.append((rank, _value(match[0])))
    return found


def _template(name: str) -> str:
    return _NUMBER.sub("#", name)


def _value(text: str) -> int:
    """'1200', '10k' or '1.5B' as a number; absurdly long ones are cut."""
    factor = _THOUSANDS.get(text[-1].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    return round(float(digits) * factor) if "." in digits else int(digits[:18]) * factor
