"""Graded tensors: a leading coefficient and its degree, at the level of PyTorch's dispatcher."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_iter, tree_map

from orderone.asymptotics import attention, comparisons, moves, norms, pointwise, sums
from orderone.asymptotics.algebra import joined
from orderone.asymptotics.parts import parts_of
from orderone.asymptotics.term import NoLimitError, Reason, Term, term
from orderone.asymptotics.trace import Origin, Source, Trace
from orderone.core.errors import ModelError

aten: Any = torch.ops.aten
_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # how torch documents it for subclasses

RULES: dict[Any, Callable[..., Any]] = {
    **moves.RULES,
    **sums.RULES,
    **comparisons.RULES,
    **pointwise.RULES,
    **norms.RULES,
    aten._softmax: attention.softmax,
    aten._safe_softmax: attention.softmax,
    aten._log_softmax: attention.log_softmax,
}


@dataclass(kw_only=True)
class Recorder:
    """The trace that is being made, and the module that is being run."""

    trace: Trace
    path: list[str] = field(default_factory=list[str])

    @property
    def where(self) -> str:
        return self.path[-1] if self.path else ""


@dataclass(kw_only=True)
class Grade:
    """What all views of one memory share."""

    degree: Fraction
    dropped: frozenset[Reason]
    source: Source
    writes: int = 0


class Graded(Tensor):
    """A value v(c) = c^degree (lead + o(1)) that any torch function can be given."""

    lead: Tensor
    grade: Grade
    recorder: Recorder
    _tail: Term | None
    _followed: bool
    _tail_writes: int

    @staticmethod
    def __new__(cls: type["Graded"], made: Term, recorder: Recorder, grade: Grade) -> "Graded":
        lead = made.lead
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            lead.size(),
            strides=lead.stride(),
            storage_offset=lead.storage_offset(),
            dtype=lead.dtype,
            device=lead.device,
        )
        self.lead, self.grade, self.recorder = lead, grade, recorder
        self.remember(made)
        return self

    @property
    def degree(self) -> Fraction:
        """k of v(c) = c^k (lead + o(1))."""
        return self.grade.degree

    @property
    def dropped(self) -> frozenset[Reason]:
        """Why v(c) = c^k lead is not exact; nothing where it is."""
        return self.grade.dropped

    @property
    def source(self) -> Source:
        """The trace's line, or the parameter, that it came from."""
        return self.grade.source

    def remember(self, made: Term | None) -> None:
        """What was dominated in the sum that this is, until the memory is written to again."""
        self._tail = None if made is None else made.tail
        self._followed = made is not None and made.followed
        self._tail_writes = self.grade.writes

    def as_term(self) -> Term:
        # A write through another view makes what was remembered of this one's sum untrue.
        tail = self._tail if self._tail_writes == self.grade.writes else None
        return Term(
            lead=self.lead,
            degree=self.degree,
            dropped=self.dropped,
            tail=tail,
            followed=self._followed,
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        del tensor_contents
        return f"Graded(degree={self.degree}, lead={self.lead})"

    __torch_function__: Any = _C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        return _interpreted(func, args, kwargs or {})


def _interpreted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation by its rule; without one by its parts, or refused by name."""
    packet = func.overloadpacket
    if func is aten.copy_.default:
        return _copied_into(*args[:2])
    known = RULES.get(packet)
    if known is not None:
        return _by_rule(func, known, args, kwargs)
    in_place = RULES.get(_out_of_place(func))
    if in_place is not None:
        write = _reshaped if torch.Tag.inplace_view in func.tags else _written
        return write(func, in_place, args, kwargs)
    if (made := parts_of(func, packet)) is not None:
        return made(*args, **kwargs)
    if (made := parts_of(func, _out_of_place(func))) is not None:
        return _copied_into(args[0], made(*args, **kwargs))
    parts = func.decompose(*args, **kwargs)
    if parts is NotImplemented:
        _refuse(func, args, kwargs)
    return parts


def _by_rule(
    func: Any, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if "out" in kwargs:
        _refuse(func, args, kwargs)
    given = _graded_among(args, kwargs)
    made = _applied(func, rule, given, args, kwargs)
    recorder = given[0].recorder
    if func.overloadpacket not in (*moves.LIKE, *moves.ASKED) and _holds_plain(made):
        recorder.trace.decided |= _undecided(func, given, args)
    if func.overloadpacket in moves.VIEWS:
        return _wrapped(made, lambda each: Graded(each, recorder, given[0].grade))
    made = _apart(made, given)
    silent = func.overloadpacket in moves.RULES
    return _wrapped(made, lambda each: _graded(each, func, given, recorder, silent=silent))


def _holds_plain(made: Any) -> bool:
    """Whether numbers or places come out that know nothing of c any more."""
    return any(
        not isinstance(each, Term) and not (isinstance(each, Tensor) and not each.numel())
        for each in (made if isinstance(made, list | tuple) else [made])
    )


def _undecided(func: Any, given: Sequence[Graded], args: tuple[Any, ...]) -> frozenset[Reason]:
    if func.overloadpacket in comparisons.COMPARISONS:
        return comparisons.undecided_by(*map(_as_term, args[:2]))
    return frozenset[Reason]().union(*(each.dropped for each in given))


def _apart(made: Any, given: Sequence[Graded]) -> Any:
    """A result in memory of its own: a rule that changes no number gives back what it was given."""
    if not isinstance(made, Term):
        return made
    memory = made.lead.untyped_storage().data_ptr()
    shared = any(each.lead.untyped_storage().data_ptr() == memory for each in given)
    return replace(made, lead=made.lead.clone()) if shared else made


def _written(
    func: Any, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """x.op_(…): the degree of what lies in x's memory changes for all its views."""
    given = _graded_among(args, kwargs)
    made = _applied(func, rule, given, args, kwargs)
    target = args[0]
    if not isinstance(target, Graded):
        _refuse_write(func, given[0])
    _write(func, target, made)
    number = target.recorder.trace.record(target.recorder.where, _name(func), _origins(given), made)
    target.grade.source = number
    return target


def _reshaped(
    func: Any, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """x.squeeze_(…): another view of the same memory, in the same object."""
    target = args[0]
    made = rule(target.as_term(), *args[1:], **kwargs)
    target.lead = made.lead
    target.remember(made)
    with no_dispatch():  # the shape that PyTorch itself sees
        func(*args, **kwargs)
    return target


def _copied_into(target: Any, value: Any) -> Any:
    """target.copy_(value), which is what indexed assignment does."""
    if not isinstance(target, Graded):
        _refuse_write(aten.copy_.default, value)
    made = term(value.as_term() if isinstance(value, Graded) else value)
    lead = made.lead.expand(target.lead.shape)
    _write(aten.copy_.default, target, replace(made, lead=lead, tail=None))
    return target


def _write(func: Any, target: Graded, made: Term) -> None:
    grade = target.grade
    memory = _memory(target.lead)
    whole = memory.numel() == target.lead.numel()
    empty = grade.dropped <= {"constant"} and not bool(memory.any())
    if not whole and not empty and made.degree != grade.degree:
        # Beside what stays in the memory the smaller of the two degrees becomes 0.
        both = joined([target.as_term(), made], lambda leads: leads[1])
        if both.degree != grade.degree:
            _refuse_write(func, target)
        made = both
    target.lead.copy_(made.lead)
    grade.degree = made.degree
    grade.dropped = made.dropped if whole else grade.dropped | made.dropped
    grade.writes += 1
    target.remember(made if whole else None)


def _memory(lead: Tensor) -> Tensor:
    """All numbers in the tensor's memory, those of other views included."""
    return torch.empty(0, dtype=lead.dtype, device=lead.device).set_(lead.untyped_storage())


def _applied(
    func: Any,
    rule: Callable[..., Any],
    given: Sequence[Graded],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    raw = tree_map(_as_term, (args, kwargs))
    try:
        return rule(*raw[0], **raw[1])
    except NoLimitError as error:
        place = given[0].recorder.where or "the model"
        raise ModelError(
            f"{error.found}, at {_name(func)} in {place}", expected=error.expected, do=error.do
        ) from error


def _graded(
    made: Term, func: Any, given: Sequence[Graded], recorder: Recorder, *, silent: bool
) -> Graded:
    # What is only moved about keeps its source, so that the trace shows what made it.
    source = given[0].source
    if not silent:
        source = recorder.trace.record(recorder.where, _name(func), _origins(given), made)
    return Graded(made, recorder, Grade(degree=made.degree, dropped=made.dropped, source=source))


def _wrapped(made: Any, wrap: Callable[[Term], Graded]) -> Any:
    if isinstance(made, Term):
        return wrap(made)
    if isinstance(made, list | tuple):
        return [wrap(each) if isinstance(each, Term) else each for each in made]
    return made


def _as_term(value: Any) -> Any:
    return value.as_term() if isinstance(value, Graded) else value


def _graded_among(*structures: Any) -> list[Graded]:
    return [each for each in tree_iter(structures) if isinstance(each, Graded)]


def _origins(given: Sequence[Graded]) -> list[Origin]:
    return [Origin(source=each.source, degree=each.degree) for each in given]


def _out_of_place(func: Any) -> Any:
    """aten.add for aten.add_."""
    name = func.overloadpacket.__name__
    if not name.endswith("_") or name.endswith("__") or func.namespace != "aten":
        return None
    return getattr(aten, name[:-1], None)


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    place = _graded_among(args, kwargs)[0].recorder.where or "the model"
    raise ModelError(
        f"operation '{func.overloadpacket}' in {place}, which has no rule",
        expected="operations whose leading order is known",
        do="leave the parameters before it unscaled, or write it with operations that have one",
    )


def _refuse_write(func: Any, value: Graded) -> NoReturn:
    place = value.recorder.where or "the model"
    raise ModelError(
        f"a value of degree {value.degree} written into memory of another degree, by"
        f" '{_name(func)}' in {place}",
        expected="one degree a tensor",
        do="build the tensor with torch.cat or torch.where instead of writing into it",
    )
