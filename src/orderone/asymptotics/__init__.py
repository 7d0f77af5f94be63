"""Graded values: the degree of a network in its parameters, and the exactly saturated network."""

from orderone.asymptotics.attention import saturated_attention
from orderone.asymptotics.graded import Graded
from orderone.asymptotics.interpret import degrees, graded_parameters, saturated
from orderone.asymptotics.trace import Line, ModuleDegree, Trace

__all__ = [
    "Graded",
    "Line",
    "ModuleDegree",
    "Trace",
    "degrees",
    "graded_parameters",
    "saturated",
    "saturated_attention",
]
