"""Blocks about the claims: calibration, benchmark, adversarial prompts, tracking."""

from __future__ import annotations

from typing import Annotated, Literal

from pipeline.common.reading import Count, Number, Share, between, block


@block
class CalibrateParams:
    """What counts as good enough, and how sure we want to be of it."""

    budgets: tuple[Share, ...] = (0.02, 0.03, 0.05)
    """Largest losses against strict that are certified, as shares of prompts."""
    confidence: Annotated[Number, between(0.5, 0.9999)] = 0.95
    """Confidence of every certificate, in [0.5, 1)."""
    looks: Count = 1
    """Looks at the same calibration prompts that are planned, in looks; each gets an equal part of the error."""
    stop: Literal["planned", "lost"] = "planned"
    """When a setting is left: behind the last prompt, or as soon as a wager shows that it loses the largest budget."""
    settings: Count = 3
    """Settings per method that development prompts may send to certification behind the strictest, in settings."""
    evaluations: Count = 5
    """Settings per method that development prompts may measure, in settings; each further variant allows one more."""
    reserve: Annotated[Number, between(0, 3)] = 1.0
    """What the choice of settings leaves free below a budget, in standard errors of the loss on calibration prompts
    minus that on development prompts."""


@block
class BenchmarkParams:
    """How speed is measured."""

    prompts: Count = 100
    """Test prompts that every method decodes, in prompts."""
    development: Count = 16
    """Development prompts on which transformers' speculation gets its K, in prompts; each is decoded at a dozen K."""
    repeats: Count = 1
    """Times every prompt is decoded by every method, in runs."""
    threads: Count = 1
    """Processor threads; one row of a small model gains nothing from more."""
    engine: str = "eager"
    """Engine of our own decoders: eager, or compiled, which builds programs for every method before it times any."""


@block
class AdversarialParams:
    """Prompts that try to lead a decoder astray."""

    prompts: Count = 25
    """Test prompts that are turned into four adversarial ones each, in prompts."""
    file: str | None = None
    """JSON lines with further prompts, named `prompt`, `question` or `turns`; None takes none."""


@block
class TrackingParams:
    """Where runs are recorded."""

    experiment: str | None = None
    """Name of the MLflow experiment; None makes it "<pair>/<task>"."""
