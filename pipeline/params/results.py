"""Blocks about the claims: calibration, benchmark, tracking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pipeline.params.reading import Between

Count = Annotated[int, Between(1)]


@dataclass(frozen=True)
class CalibrateParams:
    """What counts as good enough, and how sure we want to be of it."""

    budgets: Annotated[tuple[float, ...], Between(0, 1)] = (0.02, 0.03, 0.05)
    """Largest losses against strict that are certified, as shares of prompts."""
    confidence: Annotated[float, Between(0.5, 0.9999)] = 0.95
    """Confidence of every certificate, in [0.5, 1)."""
    settings: Count = 3
    """Settings per method that development prompts may send to certification behind the strictest, in settings."""
    evaluations: Count = 5
    """Settings per method that development prompts may measure, in settings; each further variant allows one more."""
    reserve: Annotated[float, Between(0, 3)] = 1.0
    """What the choice of settings leaves free below a budget, in standard errors of the loss on calibration prompts
    minus that on development prompts."""


@dataclass(frozen=True)
class CertifyParams:
    """What `make certify` certifies beside the run, with prompts of its own."""

    methods: tuple[str, ...] = ("autojudge", "ensemble", "sense", "fly")
    """Methods, by name; the learned one first, the large table's among them."""
    budgets: Annotated[tuple[float, ...], Between(0, 1)] = (0.01, 0.02)
    """Largest losses that are certified, as shares of prompts."""
    prompts: Count = 4000
    """Calibration prompts that no other stage uses, in prompts."""
    block: Count = 16
    """K of all methods, in tokens: long enough that no method meets its ceiling of K + 1."""
    ece_problems: Count = 600
    """Further problems on whose gated texts the calibration error is measured, in prompts."""


@dataclass(frozen=True)
class BenchmarkParams:
    """How speed is measured."""

    prompts: Count = 30
    """Test prompts that every method decodes, in prompts."""
    repeats: Count = 1
    """Times every prompt is decoded by every method, in runs."""
    threads: Count = 1
    """Processor threads; one row of a small model gains nothing from more."""
    engine: str = "eager"
    """Engine of our own decoders: eager, or compiled, which builds programs for every method before it times any."""


@dataclass(frozen=True)
class SpeedParams:
    """What `make speed` certifies anew, so that every method is timed at its own K."""

    blocks: dict[str, Annotated[int, Between(1)]] = field(
        default_factory=lambda: {"prob": 4, "prob-ratio": 4, "autojudge": 5, "ensemble": 5, "judge": 4}
    )
    """K by method, in tokens, the large table's methods among them; all others are timed at decoding.block."""


@dataclass(frozen=True)
class TrackingParams:
    """Where runs are recorded."""

    experiment: str | None = None
    """Name of the MLflow experiment; None makes it "<pair>/<task>"."""
