"""Where every degree came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from orderone.asymptotics.term import Reason, Term

Source = int | str
"""The number of a line, or the name of a parameter."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    source: Source
    degree: Fraction


@dataclass(frozen=True, kw_only=True)
class Line:
    """One operation on graded values: data of degree 0 are not among its ``inputs``."""

    number: int
    module: str
    operation: str
    inputs: tuple[Origin, ...]
    degree: Fraction
    shape: tuple[int, ...]
    dropped: frozenset[Reason]
    note: str
    margin: float | None

    def __str__(self) -> str:
        sources = ", ".join(f"{_shown(each.source)}: {each.degree}" for each in self.inputs)
        place = self.module or "(model)"
        note = f"  [{self.note}]" if self.note else ""
        return f"#{self.number} degree {self.degree}  {place} {self.operation}({sources}){note}"


@dataclass(frozen=True, kw_only=True)
class ModuleDegree:
    """The degree of what one call of a module gave; ``line`` says which operation made it."""

    module: str
    kind: str
    degree: Fraction
    dropped: frozenset[Reason]
    source: Source
    vanishes: bool
    """Whether all leading coefficients are 0: the degree is then a bound."""


@dataclass(kw_only=True)
class Trace:
    """All operations in order, and the degree of every module's output, outermost last."""

    lines: list[Line] = field(default_factory=list[Line])
    modules: list[ModuleDegree] = field(default_factory=list[ModuleDegree])
    output: list[ModuleDegree] = field(default_factory=list[ModuleDegree])
    """Every graded tensor that the whole model gave."""
    decided: frozenset[Reason] = frozenset()
    """Beside what the values were that became ordinary numbers: by a comparison, as a place."""

    @property
    def degree(self) -> Fraction | None:
        """Of the model's first graded output; None where nothing depends on scaled parameters."""
        return self.output[0].degree if self.output else None

    @property
    def exact(self) -> bool:
        """Whether f(x; cθ) = c^k f(x; θ) holds for every c > 0 and not only in the limit."""
        return not self.beside

    @property
    def beside(self) -> list[Reason]:
        """Why it does not: what the outputs hold beside their leading coefficients."""
        dropped = (each.dropped for each in self.output)
        return sorted(self.decided.union(*dropped)) if self.output else []

    @property
    def margin(self) -> float | None:
        """The smallest relative gap between a largest score and the next: small is slow."""
        return min((line.margin for line in self.lines if line.margin is not None), default=None)

    def degree_of(self, module: str) -> Fraction:
        """Of the module's first output; KeyError where it gave none that is graded."""
        for each in self.modules:
            if each.module == module:
                return each.degree
        raise KeyError(module)

    def ancestry(self, source: Source) -> Iterator[Line]:
        """The lines that led to a value's degree: at each the input of largest degree."""
        while isinstance(source, int):
            line = self.lines[source]
            yield line
            if not line.inputs:
                return
            source = max(line.inputs, key=lambda each: each.degree).source

    def record(self, module: str, operation: str, inputs: Sequence[Origin], made: Term) -> int:
        """The number of the line that says how ``made`` came about."""
        number = len(self.lines)
        line = Line(
            number=number,
            module=module,
            operation=operation,
            inputs=tuple(inputs),
            degree=made.degree,
            shape=tuple(made.lead.shape),
            dropped=made.dropped,
            note=made.note,
            margin=made.margin,
        )
        self.lines.append(line)
        return number

    def __str__(self) -> str:
        return "\n".join(str(line) for line in self.lines)


def _shown(source: Source) -> str:
    return f"#{source}" if isinstance(source, int) else source
