"""Settings from files and arguments: frozen, unknown ones refused, every complaint one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from orderone.core.errors import ConfigError


class Settings(BaseModel):
    """Base of every configuration; making one that is impossible raises ``ConfigError``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers keep the signature that pydantic gives them

        def __init__(self, /, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise refusal(type(self), error) from None


def refusal(cls: type[BaseModel], error: ValidationError) -> ConfigError:
    """The first of pydantic's complaints in our words, with the number of the others."""
    first, *others = error.errors(include_url=False)
    # A union adds its branches to the place, a list its index; the setting's name comes first. A
    # table of settings complains for itself.
    name = str(first["loc"][0]) if first["loc"] else cls.__name__
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(cls.model_fields)
        return ConfigError(
            f"unknown setting '{name}' of {cls.__name__}{more}",
            expected=f"one of {known}",
            do="remove or rename it",
        )
    if first["type"] == "missing":
        return ConfigError(
            f"no '{name}' for {cls.__name__}{more}", expected="a value", do=f"give {name}"
        )
    said = first["msg"].removeprefix("Input should be ")
    return ConfigError(
        f"{name} = {first['input']!r} for {cls.__name__}{more}",
        expected=said,
        do=f"correct {name}",
    )
