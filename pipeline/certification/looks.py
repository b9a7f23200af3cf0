"""What a calibration tells the ledgers of looks before it decodes its calibration prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gistgate.certificates.looks import Looks
from gistgate.files import fingerprint
from pipeline.certification.outcomes import Setup
from pipeline.common.closure import ROOT, closure
from pipeline.common.code import CERTIFYING, code_fingerprint
from pipeline.params import Params

CHOOSING = "gistgate.certificates.search"
"""The module that chooses the settings to test."""
APART = ("tracking", "benchmark", "adversarial", "allow_code", "engine", "methods", "prompts", "decoding")
"""Keys of params.yaml that choose nothing, or of which only a part does."""
TRAINING = ("collect", "label", "train")
"""Blocks that decide nothing about a method without a gate."""


def looks_of(setup: Setup, name: str, study: str = "", own: Any = None, modules: tuple[str, ...] = ()) -> Looks:
    """What the method `name` tells the ledgers.

    Args:
        setup: the run; its calibration prompts are those that are about to be judged.
        name: a method of params.yaml, or a name of the study's own.
        study: a study that certifies the method apart from the core, such as at its own K.
        own: parameters of the study that lead to the tested settings, as plain JSON.
        modules: modules of the study that choose, besides the stages of the core.
    """
    params = setup.params
    certified = f"{name} in the study {study}" if study else name
    return Looks(
        claim=f"{params.pair}, {setup.task.name}, {setup.scorer.id}: {certified}",
        prompts=[prompt["ids"] for prompt in setup.prompts["calibration"]],
        error=1 - params.calibrate.confidence,
        code=code_fingerprint(*sorted({*CERTIFYING, *modules})),
        choice=choice_of(params, name, own),
        remedy=remedy(params),
    )


def remedy(params: Params) -> str:
    """How fresh calibration prompts are drawn."""
    return f"Set prompts.draw to {params.prompts.draw + 1} in params.yaml, which draws fresh calibration prompts."


def choice_of(params: Params, name: str, own: Any = None) -> str:
    """Fingerprint of the parameters that lead to a method's tested settings, and of the module that chooses them."""
    method = params.methods.get(name)
    free = method is not None and not method.learned
    kept: Mapping[str, Any] = {
        block: value
        for block, value in asdict(params).items()
        if block not in APART and not (free and block in TRAINING)
    }
    sizes, decoding = asdict(params.prompts), asdict(params.decoding)
    sizes = {split: size for split, size in sizes.items() if split in ("development", "calibration", "draw")}
    decoding = {key: decoding[key] for key in ("block", "max_new_tokens", "batch_size")}
    choosing = [ROOT / path for path in closure(CHOOSING)]
    return fingerprint(kept, sizes, decoding, method and asdict(method), own, *choosing)
