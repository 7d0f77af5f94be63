"""Any torch model on graded values: its degree, and lim f(x; cθ) as c → ∞."""

from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_iter

from orderone.asymptotics.graded import Grade, Graded, Recorder
from orderone.asymptotics.term import Term
from orderone.asymptotics.trace import ModuleDegree, Trace
from orderone.core.errors import ConfigError, ModelError

Scaled = Callable[[str], bool] | Collection[str] | None
"""Which parameters are multiplied by c: a test of names, the names, or None for all."""


def saturated(model: nn.Module, *args: Any, scaled: Scaled = None, **kwargs: Any) -> Any:
    """lim f(x; cθ) as c → ∞, [MRGSS21] Def. 1: what the model gives, every tensor graded.

    v = c^v.degree · (v.lead + o(1)): ``lead`` is the direction, and the limit itself at degree 0.
    Tensors that depend on no scaled parameter are ordinary ones. The model should be in evaluation
    mode, for dropout has no limit; float64 is best, since near ties are decided by rounding.
    """
    with graded_parameters(model, scaled=scaled):
        return model(*args, **kwargs)


def degrees(model: nn.Module, *args: Any, scaled: Scaled = None, **kwargs: Any) -> Trace:
    """The degree of every intermediate and where it came from, [MRGSS21] Def. 2, Table 1."""
    with graded_parameters(model, scaled=scaled) as trace:
        model(*args, **kwargs)
    return trace


@contextmanager
def graded_parameters(model: nn.Module, *, scaled: Scaled = None) -> Generator[Trace]:
    """Within it the model's scaled parameters have degree 1, and all that is made of them a degree.

    For what is not a plain call: ``with graded_parameters(model): model.trace(tokens)``.
    """
    recorder = Recorder(trace=Trace())
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as undo:
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast_attention)
        torch.backends.mha.set_fastpath_enabled(False)
        # Attention by its equations: the fused kernels are one operation without a rule.
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))
        undo.enter_context(torch.no_grad())
        _grade_parameters(model, _is_scaled(model, scaled), recorder, undo)
        _watch_modules(model, recorder, undo)
        yield recorder.trace


def _is_scaled(model: nn.Module, scaled: Scaled) -> Callable[[str], bool]:
    if scaled is None:
        return lambda name: True
    if callable(scaled):
        return scaled
    wanted = {scaled} if isinstance(scaled, str) else set(scaled)
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if unknown := sorted(wanted - known):
        raise ConfigError(
            f"{len(unknown)} parameters to scale that the model lacks, such as '{unknown[0]}'",
            expected=f"names such as '{min(known, default='')}'",
            do="take names from model.named_parameters()",
        )
    return wanted.__contains__


def _grade_parameters(
    model: nn.Module, is_scaled: Callable[[str], bool], recorder: Recorder, undo: ExitStack
) -> None:
    """Every module's parameters graded; tied ones are one value, scaled if any name of them is."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    graded: dict[int, Graded] = {}
    for module in model.modules():
        # As torch.func.functional_call does: a module takes any tensor for its parameter here.
        own: dict[str, Any] = module._parameters  # pyright: ignore[reportPrivateUsage, reportAssignmentType]
        for leaf, parameter in list(own.items()):
            if parameter is None or not parameter.is_floating_point():
                continue
            aliases = names[id(parameter)]
            if not any(map(is_scaled, aliases)):
                continue
            if id(parameter) not in graded:
                graded[id(parameter)] = _leaf(aliases[0], parameter, recorder)
            undo.callback(own.__setitem__, leaf, parameter)
            own[leaf] = graded[id(parameter)]
    if not graded:
        raise ModelError(
            "a model without scaled parameters",
            expected="at least one to multiply by c",
            do="give names of floating-point parameters that the model has",
        )


def _leaf(name: str, parameter: Tensor, recorder: Recorder) -> Graded:
    lead = parameter.detach()
    if not bool(lead.isfinite().all()):
        raise ModelError(
            f"parameter '{name}' with NaN or infinite entries",
            expected="finite numbers",
            do="load weights that are whole",
        )
    grade = Grade(degree=Fraction(1), dropped=frozenset(), source=name)
    return Graded(Term(lead=lead, degree=grade.degree), recorder, grade)


def _watch_modules(model: nn.Module, recorder: Recorder, undo: ExitStack) -> None:
    for name, module in model.named_modules():
        watch = _Watch(name, recorder)
        undo.callback(module.register_forward_pre_hook(watch.entered, prepend=True).remove)
        undo.callback(module.register_forward_hook(watch.left, always_call=True).remove)


class _Watch:
    """Tells the recorder when a module is entered and left, and what it gave."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self.recorder = recorder

    def entered(self, module: nn.Module, args: Any) -> None:
        del module, args
        self.recorder.path.append(self.name)

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        del args
        if self.recorder.path:
            self.recorder.path.pop()
        found = [
            ModuleDegree(
                module=self.name,
                kind=type(module).__name__,
                degree=each.degree,
                dropped=each.dropped,
                source=each.source,
                vanishes=not bool(each.lead.any()),
            )
            for each in tree_iter(output)
            if isinstance(each, Graded)
        ]
        self.recorder.trace.modules += found
        if not self.name:
            self.recorder.trace.output = found
