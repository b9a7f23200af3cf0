"""Trained judges of draft tokens: what they look at, what they are, and the folder they live in."""

from gistgate.gates.config import GateConfig, OperatingPoint
from gistgate.gates.gate import Gate
from gistgate.gates.heads import HEADS

__all__ = ["HEADS", "Gate", "GateConfig", "OperatingPoint"]
