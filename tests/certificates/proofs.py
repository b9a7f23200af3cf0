"""Certificates as calibration would write them, for tests that need one."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gistgate.core.identity import (
    ModelIdentity,
    TokenizerIdentity,
    gate_hash,
    identify_model,
    identify_tokenizer,
)
from gistgate.coverage.certificate import Certificate, OperatingPoint
from gistgate.gate import Gate, GateConfig
from tests.tiny import byte_tokenizer

IDENTITY = ModelIdentity("tiny", None, "llama", 8, 2, 100, "float32", "abc")
POINT = OperatingPoint(
    budget=0.01,
    confidence=0.95,
    settings={"risk": 0.2},
    n=2000,
    losses=8,
    gains=5,
    loss=0.0015,
    bound=0.0075,
    bound_kind="exact",
    harm=0.004,
    harm_bound=0.011,
    certified=True,
    mean_accepted_length=6.5,
)


def point(budget: float = 0.01, certified: bool = True, **changes: Any) -> OperatingPoint:
    """An operating point; settings of the rule are given by `settings`."""
    refusal = None if certified else "Too few prompts."
    return replace(POINT, budget=budget, certified=certified, **{"refusal": refusal, **changes})


def proof_for(gate: Gate, *points: OperatingPoint) -> Certificate:
    """A certificate that holds for a gate and its tokenizer."""
    return certificate(
        *points,
        scope={
            "gate": gate_hash(gate),
            "tokenizer": gate.config.tokenizer.vocabulary,
            "temperature": 0.0,
        },
    )


def spread_out(losses: int, gains: int, n: int) -> np.ndarray:
    """Differences [n] with so many losses and gains, spread as evenly as whole prompts allow."""
    d = np.zeros(n)
    places = np.linspace(0, n, losses + gains, endpoint=False).astype(int)
    share = losses / max(losses + gains, 1)
    is_loss = np.diff(np.floor(np.arange(losses + gains + 1) * share + 1e-9)) > 0
    d[places] = np.where(is_loss, 1.0, -1.0)
    return d


def certificate(*points: OperatingPoint, **changes: Any) -> Certificate:
    """A certificate of `autojudge` with the draft model at K = 4."""
    certificate = Certificate(
        rule="autojudge",
        drafter="model",
        block=4,
        knob="risk",
        score="task",
        confidence=0.95,
        headline_budget=0.03,
        scope={},
        points=points or (POINT,),
    )
    return replace(certificate, **changes)


def linear_gate(target: Any, draft: Any, tokenizer: Any = None, **more: Any) -> Gate:
    """An untrained gate of loaded tiny models on the last states; it finds everything harmless."""
    partners = (
        identify_model(target),
        draft and identify_model(draft),
        identify_tokenizer(tokenizer or byte_tokenizer()),
    )
    return Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *partners, **more))


def gate_with(slope: float = 1.0) -> Gate:
    """A linear gate on the scalars."""
    config = GateConfig(
        {"type": "linear"}, {"scalars": 8}, IDENTITY, None, TokenizerIdentity("tiny", "hash", 100)
    )
    gate = Gate(config)
    gate.head.first.weight.data = torch.full((1, 8), slope)
    return gate
