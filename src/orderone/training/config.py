"""How a model is trained, as a file says it; impossible combinations are refused in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from orderone.core.errors import ConfigError
from orderone.training.schedules import Kind

Precision = Literal["float32", "bfloat16", "float16"]
Parallel = Literal["none", "ddp", "fsdp"]
Number = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
AnySettings = TypeVar("AnySettings", bound="Settings")


class Settings(BaseModel):
    """Frozen; unknown keys and wrong types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class OptimizerConfig(Settings):
    """An optimizer by its name in ``torch.optim``, in upper or lower case."""

    name: str = "AdamW"
    lr: Positive = 1e-3
    weight_decay: Number = 0.0
    settings: dict[str, Any] = Field(default_factory=dict)
    """What else its class takes: ``betas``, ``momentum``, ``eps``."""


class ScheduleConfig(Settings):
    """Multiplier of every group's learning rate; see ``schedules``."""

    kind: Kind = "constant"
    warmup: Count = 0
    """Steps in which the rate rises from 0 to its full value."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """What cosine and linear fall to."""
    length: PositiveInt | None = None
    """Steps that it is laid out for; the run's own where not given. Longer, the run is its
    beginning."""


class TrainingConfig(Settings):
    """The course of a run; what is trained, and on what, is said elsewhere."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: PositiveInt
    batch_size: PositiveInt
    """Samples of a step, over all processes and parts."""
    micro_batch: PositiveInt | None = None
    """Samples that one process holds at a time; batch_size where not given."""
    clip: Positive | None = None
    """Largest norm of the gradient."""
    precision: Precision = "float32"
    compile: bool = False
    deterministic: bool = False
    """torch's deterministic algorithms only; an operation without one ends the run."""
    evaluate_every: PositiveInt | None = None
    evaluation_batches: PositiveInt = 8
    """Parts that are held out, over all processes; another micro_batch is other samples."""
    checkpoint_every: PositiveInt | None = None
    """None: at the end alone."""
    keep: PositiveInt = 2
    """Checkpoints that stay, beside the best."""
    parallel: Parallel = "none"
    activation_checkpointing: bool = False
    timeout: PositiveInt = 600
    """Seconds that a process waits for the others."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)

    @property
    def part(self) -> int:
        """Samples in one part of a step."""
        return self.batch_size if self.micro_batch is None else self.micro_batch

    def accumulated(self, world: int) -> int:
        """Parts that each of ``world`` processes adds up to a step."""
        if self.batch_size % (self.part * world):
            raise ConfigError(
                f"batch_size = {self.batch_size} in parts of {self.part} on {world} processes",
                expected="a whole number of parts for each process",
                do=f"set micro_batch to a divisor of {self.batch_size}/{world}",
            )
        return self.batch_size // (self.part * world)

    @model_validator(mode="after")
    def _possible(self) -> TrainingConfig:
        if self.batch_size % self.part:
            raise ConfigError(
                f"batch_size = {self.batch_size} with micro_batch = {self.part}",
                expected="batch_size divisible by micro_batch",
                do="change either",
            )
        if self.schedule.warmup > self.steps:
            raise ConfigError(
                f"schedule.warmup = {self.schedule.warmup} with steps = {self.steps}",
                expected="a warm-up within the run",
                do="shorten the warm-up or lengthen the run",
            )
        if (self.schedule.length or self.steps) < self.steps:
            raise ConfigError(
                f"schedule.length = {self.schedule.length} with steps = {self.steps}",
                expected="a schedule as long as the run, or longer",
                do="lengthen it, or leave it out",
            )
        if self.precision == "float16" and self.parallel == "fsdp":
            raise ConfigError(
                "precision = 'float16' with parallel = 'fsdp'",
                expected="bfloat16 or float32, which need no scaling of sharded gradients",
                do="set precision = 'bfloat16'",
            )
        return self


def checked(cls: type[AnySettings], mapping: Mapping[str, Any]) -> AnySettings:
    """The settings that ``mapping`` gives; ConfigError names the first that is wrong."""
    try:
        return cls.model_validate(dict(mapping))
    except ValidationError as error:
        raise _refusal(cls, error) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """All of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"'{path}' cannot be read ({getattr(error, 'strerror', None) or error})",
            expected="a configuration file",
            do="check the path",
        ) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"'{path}' is not TOML ({error})", expected="TOML", do="correct that line"
        ) from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> list[str]:
    """``key = a, now b`` for every setting that differs, nested ones by their dotted name."""
    found: list[str] = []
    for key in dict.fromkeys([*before, *now]):
        a, b, name = before.get(key), now.get(key), f"{at}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            nested = (cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b))
            found += differences(*nested, at=f"{name}.")
        elif a != b:
            found.append(f"{name} = {a!r}, now {b!r}")
    return found


def _refusal(cls: type[BaseModel], error: ValidationError) -> ConfigError:
    first, *others = error.errors(include_url=False)
    place = [str(part) for part in first["loc"]]
    name = ".".join(place) or cls.__name__
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(_fields(cls, place[:-1]))
        return ConfigError(
            f"unknown setting '{name}'{more}", expected=f"one of {known}", do="remove or rename it"
        )
    if first["type"] == "missing":
        return ConfigError(f"no setting '{name}'{more}", expected="a value", do=f"give {name}")
    said = first["msg"].removeprefix("Input should be ")
    return ConfigError(f"{name} = {first['input']!r}{more}", expected=said, do=f"correct {name}")


def _fields(cls: type[BaseModel], place: list[str]) -> list[str]:
    """Names of the settings in the section at ``place``."""
    for part in place:
        inner = cls.model_fields[part].annotation if part in cls.model_fields else None
        # A section that may be absent: X | None.
        inner = next((each for each in get_args(inner) if each is not type(None)), inner)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        cls = inner
    return list(cls.model_fields)
