"""The same parameter under other names: wrappers' prefixes, tied and missing tensors.

Whatever was matched or left out is said in a note; what cannot be matched is a finding.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orderone.core.parameter_names import clean_name, role_of
from orderone.trajectory.findings import UnreadableError
from orderone.trajectory.safetensors_files import listed, shape_text
from orderone.trajectory.state_dicts import is_buffer, is_state_name
from orderone.trajectory.stored import Stored

_LONGEST_NAME = 4096

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """Weights under clean names, tied ones once."""

    tensors: Mapping[str, Stored]
    tied: Mapping[str, str]  # the name left out, and the one that has its values
    renamed: bool = False  # whether a wrapper's prefix was taken off
    skipped: tuple[str, ...] = ()  # tables and integers: not weights

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: stored.info.shape for name, stored in self.tensors.items()}


def cleaned(tensors: Mapping[str, Stored]) -> Cleaned:
    """Floating tensors that are learned, by clean name and sorted."""
    kept: dict[str, Stored] = {}
    skipped: list[str] = []
    for name, stored in tensors.items():
        clean = clean_name(name)
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise UnreadableError("unreadable", f"a tensor named {name!r:.80}")
        info = stored.info
        state = is_state_name(name) or is_buffer(clean, info.shape)
        if state or not info.dtype.is_floating_point:
            skipped.append(clean)
        elif clean in kept:
            raise UnreadableError("unreadable", f"'{clean}' is there with and without a prefix")
        else:
            kept[clean] = stored
    if not kept:
        raise UnreadableError("unreadable", "no floating-point weights in it")
    tied = _tied(kept)
    once = {name: kept[name] for name in sorted(kept) if name not in tied}
    renamed = any(clean_name(name) != name for name in tensors)
    return Cleaned(tensors=once, tied=tied, renamed=renamed, skipped=tuple(sorted(skipped)))


def _tied(tensors: Mapping[str, Stored]) -> dict[str, str]:
    """Names whose bytes another name has too; the embedding keeps them rather than the head."""
    first: dict[object, str] = {}
    tied: dict[str, str] = {}
    for name in sorted(tensors, key=lambda name: (role_of(name) == "head", name)):
        if tensors[name].info.numel == 0:
            continue
        kept = first.setdefault(tensors[name].place, name)
        if kept != name:
            tied[name] = kept
    return tied


def reference(many: Sequence[Cleaned]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as most checkpoints have them; among equals, the earliest."""
    counts = Counter(tuple(each.shapes.items()) for each in many)
    return dict(max(counts, key=lambda shapes: counts[shapes])) if counts else {}


def matched(
    have: Cleaned, wanted: Shapes, *, ignored: Sequence[str] = ()
) -> tuple[dict[str, Stored], list[str]]:
    """The tensors under the wanted names, and notes; raises 'shape' if one lacks or differs."""
    prefix = _prefix(have, wanted)
    names = {name: _own_name(have, name, prefix) for name in wanted}
    missing = [name for name, own in names.items() if own is None]
    if missing:
        raise UnreadableError("shape", f"it lacks {listed(missing)} of {len(wanted)} tensors")
    found = {name: have.tensors[own] for name, own in names.items() if own is not None}
    for name, stored in found.items():
        if stored.info.shape != wanted[name]:
            raise UnreadableError(
                "shape",
                f"'{name}' is {shape_text(stored.info.shape)}, "
                f"elsewhere {shape_text(wanted[name])}",
            )
    notes = [f"names matched across the prefix '{prefix}'"] if prefix else []
    extra = sorted(set(have.tensors) - set(names.values()) - set(ignored))
    return found, [*notes, *([f"{listed(extra)} only here, left out"] if extra else [])]


def common_notes(many: Sequence[Cleaned]) -> list[str]:
    """What was done to names, said once for the series."""
    tied = sorted({f"{alias} = {kept}" for each in many for alias, kept in each.tied.items()})
    skipped = sorted({name for each in many for name in each.skipped})
    renamed = sum(each.renamed for each in many)
    notes = [f"tied, counted once: {listed(tied)}"] if tied else []
    notes += [f"not weights, left out: {listed(skipped)}"] if skipped else []
    return notes + ([f"wrappers' prefixes taken off in {renamed} checkpoints"] if renamed else [])


def tied_elsewhere(many: Sequence[Cleaned], wanted: Shapes) -> list[str]:
    """Heads that some checkpoints store and others leave to the embedding of the same shape."""
    heads = [name for name in wanted if role_of(name) == "head" and len(wanted[name]) == 2]
    return [name for name in heads if any(_left_to_embedding(each, name, wanted) for each in many)]


def _left_to_embedding(have: Cleaned, head: str, wanted: Shapes) -> bool:
    if _own_name(have, head, _prefix(have, wanted)) is not None:
        return False
    shapes = have.shapes
    return any(shapes[n] == wanted[head] and role_of(n) == "embedding" for n in shapes)


def _own_name(have: Cleaned, name: str, prefix: str) -> str | None:
    options = [name, prefix + name, name.removeprefix(prefix)]
    tied = [have.tied.get(option) for option in options]
    return next((option for option in [*options, *tied] if option in have.tensors), None)


def _prefix(have: Cleaned, wanted: Shapes) -> str:
    """What one side's names have before the other's, such as 'model.'; '' if nothing."""
    if set(wanted) <= set(have.tensors):
        return ""
    prefixes = Counter(_longer_by(have.tensors, wanted))
    prefixes.update(_longer_by(wanted, have.tensors))
    return prefixes.most_common(1)[0][0] if prefixes else ""


def _longer_by(longer: Mapping[str, object], shorter: Mapping[str, object]) -> list[str]:
    """For each name of ``longer`` that ends as one of ``shorter`` reads, what stands before."""
    found: list[str] = []
    for name in longer:
        parts = name.split(".")
        tails = (".".join(parts[cut:]) for cut in range(1, min(len(parts), 5)))
        tail = next((tail for tail in tails if tail in shorter), None)
        if tail is not None and name not in shorter:
            found.append(name[: -len(tail)])
    return found
