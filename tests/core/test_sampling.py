"""Temperature above 0: the texts are distributed as the target's own, through cache, drafter and rounds.

A model over three tokens writes three of them; the probability of each of the 27 texts is known, and a chi-square
test with fixed seeds compares. Its critical value at one in a thousand is 54 for 26 degrees of freedom.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import pair

PROMPT = [1, 0, 2, 1, 0]
TEXTS = list(product(range(3), repeat=3))
NUM = 1500


def wanted(sampling: Sampling) -> Tensor:
    """Probability of every text of three tokens behind the prompt [27]."""
    target = pair("llama", 3, 0.5)[0]
    with torch.no_grad():
        z = target(torch.tensor([[*PROMPT, *text] for text in TEXTS])).logits[:, len(PROMPT) - 1 : -1]
    p = sampling.logits(z).softmax(-1)
    return p.gather(-1, torch.tensor(TEXTS)[..., None]).double().prod(1).squeeze(-1)


def chi_square(decoder: Decoder, sampling: Sampling) -> float:
    answers = decoder.generate([PROMPT] * NUM, max_new_tokens=3, sampling=sampling)
    counts = torch.zeros(27, dtype=torch.float64)
    for answer in answers:
        counts[TEXTS.index(tuple(answer.ids))] += 1
    p = wanted(sampling)
    assert counts[p == 0].sum() == 0
    p, counts = p[p > 0], counts[p > 0]
    return ((counts - NUM * p) ** 2 / (NUM * p)).sum().item()


def decoder_of(name: str, rule: Any, block: int) -> Decoder:
    target, draft = pair("llama", 3, 0.5)
    return Decoder(target, ModelDrafter(draft) if name == "model" else PromptLookup(), rule, block)


@pytest.mark.parametrize(
    "name, block, sampling",
    [
        ("model", 1, Sampling(1.0)),
        ("model", 2, Sampling(1.0)),
        ("model", 4, Sampling(0.8)),
        ("model", 2, Sampling(1.5, top_k=2)),
        ("model", 2, Sampling(2.0, top_p=0.8)),
        ("lookup", 2, Sampling(1.0)),
        ("lookup", 2, Sampling(2.0, top_p=0.8)),
        ("lookup", 0, Sampling(1.0)),
    ],
)
def test_strict_sampling_is_the_target_s(name: str, block: int, sampling: Sampling):
    assert wanted(sampling).sum().item() == pytest.approx(1)
    assert chi_square(decoder_of(name, make_rule("exact"), block), sampling) < 54


def test_a_draft_that_agrees_by_chance_is_accepted_and_refused():
    """The test above would say little if the draft were always or never kept."""
    answers = decoder_of("model", make_rule("exact"), 2).generate(
        [PROMPT] * 500, max_new_tokens=3, sampling=Sampling(1.0)
    )
    lengths = {length for answer in answers for length in answer.statistics.histogram}
    assert lengths == {0, 1, 2}


@pytest.mark.parametrize("rule_id, settings", [("prob", {"r": 0.05}), ("random", {"rate": 0.5}), ("top-k", {"k": 2})])
def test_a_loose_rule_is_noticed(rule_id: str, settings: dict[str, float]):
    assert chi_square(decoder_of("model", make_rule(rule_id, **settings), 2), Sampling(1.0)) > 54


def test_a_cold_sample_is_the_greedy_text():
    decoder = decoder_of("model", make_rule("exact"), 2)
    cold = decoder.generate([PROMPT] * 20, max_new_tokens=3, sampling=Sampling(1e-4))
    greedy = decoder.generate([PROMPT], max_new_tokens=3)[0]
    assert all(answer.ids == greedy.ids for answer in cold)
