"""Every complaint about settings is one line that names the setting and what it may be."""

from __future__ import annotations

import math

import pytest
from pydantic import Field, PositiveInt

from orderone.core.errors import ConfigError
from orderone.core.functions import importable_name, named_function
from orderone.core.settings import Settings


class Schedule(Settings):
    warmup: PositiveInt = 1


class Course(Settings):
    steps: PositiveInt
    rate: float | tuple[float, ...] = Field(default=1.0)
    schedule: Schedule = Schedule()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"no 'steps' for Course; expected a value; give steps"),
        ({"steps": 0}, r"steps = 0 for Course; expected greater than 0; correct steps"),
        ({"steps": 1, "setps": 2}, r"unknown setting 'setps' of Course; expected one of steps, "),
        ({"steps": 1, "schedule": {"wramup": 2}}, r"unknown setting 'wramup' of Schedule"),
        ({"steps": 1, "schedule": {"wramup": 2}}, r"expected one of warmup;"),
        ({"steps": 1, "schedule": {"warmup": -1}}, r"warmup = -1 for Schedule"),
        ({"steps": 1, "rate": "fast"}, r"^rate = 'fast' for Course \(and 1 more\)"),
        ({"steps": 1, "rate": math.nan}, r"rate = nan"),
        ({"steps": 0, "schedule": 3}, r"\(and 1 more\)"),
        ({"steps": 1, "self": 3}, r"unknown setting 'self' of Course"),
    ],
)
def test_a_complaint_is_one_line_that_names_the_setting(given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        Course(**given)
    assert "\n" not in str(error.value)


def test_settings_are_frozen() -> None:
    course = Course(steps=3)
    with pytest.raises(Exception, match="frozen"):
        course.steps = 4


def test_functions_go_by_name_and_back() -> None:
    known = {"floor": math.floor}
    assert named_function("rounding", "floor", known) is math.floor
    assert named_function("rounding", "math:ceil", known) is math.ceil
    assert importable_name("rounding", math.floor, known) == "floor"
    assert importable_name("rounding", math.ceil, known) == "math:ceil"
    assert importable_name("rounding", "text", known) == "text"


@pytest.mark.parametrize("name", ["flor", "math:nothing", "math:pi", "not.imported:f", ":f"])
def test_unknown_functions_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected one of floor, or package\.module:function"):
        named_function("rounding", name, {"floor": math.floor})


def test_a_function_without_a_name_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="can be imported by its name"):
        importable_name("rounding", lambda x: x, {})
