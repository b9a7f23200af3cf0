"""A row's answer depends on its own prompt and seed, and samples are distributed as the target's
own.
"""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import pair, prompts
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE, LOSSLESS, combinations

BATCH = prompts(5, 17, 2, 10, 5)
SEEDS = [11, 12, 13, 14, 15]
FEW = 24
"""Ids of a vocabulary in which prompt lookup finds something at every turn."""
RULES: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}),
    ("prob", {"r": 0.02}),
    ("autojudge", {}),
]
SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.7, top_k=20, top_p=0.9)]


def decoder_of(
    rule_id: str, settings: dict[str, Any], target: str, draft: str, block: int = 5
) -> Decoder:
    drafter = PromptLookup() if draft == "lookup" else ModelDrafter(pair(draft, noise=0.05)[1])
    gate = HalfGate() if rule_id == "autojudge" else None
    return Decoder(pair(target)[0], drafter, make_rule(rule_id, **settings), block, gate=gate)


def seen(answers: list[Generation]) -> list[Any]:
    """Everything but the clock."""
    rows = [
        (answer.ids, answer.reasons, answer.finish, answer.statistics.as_dict(timed=False))
        for answer in answers
    ]
    for *_, counts in rows:
        del counts["draft_forwards"]  # shared work: a batch drafts as far as its longest row needs
    return rows


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rule_id, settings", RULES)
@pytest.mark.parametrize(
    "target, draft", [("llama", "llama"), ("llama", "lookup"), ("gpt2", "gpt2")]
)
def test_alone_permuted_and_in_company(
    target: str, draft: str, rule_id: str, settings: dict[str, Any], sampling: Sampling
):
    decoder = decoder_of(rule_id, settings, target, draft)
    request: dict[str, Any] = {"max_new_tokens": 14, "sampling": sampling}
    together = seen(decoder.generate(BATCH, seeds=SEEDS, **request))
    order = [3, 0, 4, 2, 1]
    permuted = decoder.generate(
        [BATCH[row] for row in order], seeds=[SEEDS[row] for row in order], **request
    )
    assert seen(permuted) == [together[row] for row in order]
    for row in (1, 2):
        assert seen(decoder.generate([BATCH[row]], seeds=[SEEDS[row]], **request)) == [
            together[row]
        ]


@pytest.mark.parametrize("rule_id, greedy, with_q", combinations())
def test_every_rule_judges_its_rows_apart(rule_id: str, greedy: bool, with_q: bool):
    rule = make_rule(rule_id, **LOOSE.get(rule_id, {}))
    target, draft = pair("llama", FEW, noise=0.1)
    drafter = ModelDrafter(draft) if with_q else PromptLookup()
    decoder = Decoder(target, drafter, rule, 5, gate=HalfGate(), tokenizer=Markers())
    batch = prompts(5, 17, 2, 10, 5, vocabulary=FEW)
    request: dict[str, Any] = {"max_new_tokens": 14, "sampling": SAMPLINGS[0 if greedy else 2]}
    together = decoder.generate(batch, seeds=SEEDS, **request)
    assert any(row.statistics.loose for row in together) == (rule_id not in LOSSLESS), (
        "name settings of it in LOOSE"
    )
    for row in range(len(batch)):
        alone = decoder.generate([batch[row]], seeds=[SEEDS[row]], **request)[0]
        assert (alone.ids, alone.reasons) == (together[row].ids, together[row].reasons)
        assert alone.statistics.forwards == together[row].statistics.forwards
        assert alone.statistics.extra == pytest.approx(together[row].statistics.extra, abs=1e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
@pytest.mark.parametrize(
    "target, draft", [("llama", "mistral"), ("mistral", "mistral"), ("gemma2", "mistral")]
)
def test_windows_see_tokens_and_not_the_holes_of_the_batch(
    target: str, draft: str, sampling: Sampling
):
    """With a loose rule and with sampling the answer also shows what the draft model read."""
    decoder = decoder_of("prob", {"r": 1e-3}, target, draft)
    request: dict[str, Any] = {"max_new_tokens": 40, "sampling": sampling}
    together = seen(decoder.generate(BATCH, seeds=SEEDS, **request))
    for row in range(len(BATCH)):
        assert seen(decoder.generate([BATCH[row]], seeds=[SEEDS[row]], **request)) == [
            together[row]
        ]


def test_seeds_make_the_difference_and_nothing_else():
    decoder = decoder_of("exact", {}, "llama", "llama")
    request: dict[str, Any] = {"max_new_tokens": 14, "sampling": Sampling(1.0)}
    same = decoder.generate([BATCH[0]] * 3, seeds=[7, 7, 8], **request)
    assert same[0].ids == same[1].ids != same[2].ids
    assert (
        decoder.generate([BATCH[0]] * 2, **request)[1].ids
        == decoder.generate([BATCH[0]], seeds=[1], **request)[0].ids
    )


def test_the_device_s_own_random_state_plays_no_part():
    decoder = decoder_of("random", {"rate": 0.3}, "llama", "llama")
    torch.manual_seed(1)
    first = decoder.generate(BATCH, max_new_tokens=14)
    torch.manual_seed(2)
    assert seen(decoder.generate(BATCH, max_new_tokens=14)) == seen(first)


def test_the_company_of_a_row_decides_nothing_near_the_end_of_an_answer():
    """A longer proposal scores otherwise, so a row must not be asked for as many tokens as its
    neighbours have room.
    """
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=6, num_key_value_heads=2, max_position_embeddings=256, **sizes)
    )
    decoder = Decoder(model.eval().double(), SuffixDrafter(), make_rule("top-k", k=6), 8)
    batch = [
        [3, 2, 0, 0, 2, 0, 4, 5, 0, 0, 3],
        [0, 1, 1, 4, 3, 1, 0, 3, 1, 5, 1],
        [5, 0, 3, 3, 4, 2, 4, 2, 5, 3, 2, 0, 1],
        [2, 0, 0, 0, 2, 5, 4, 2, 3, 3, 2, 3, 0, 0, 2, 4, 3, 0, 2, 1, 4, 4, 5, 3, 5, 2, 2, 1],
    ]
    together = [answer.ids for answer in decoder.generate(batch, max_new_tokens=20)]
    assert together == [decoder.generate([text], max_new_tokens=20)[0].ids for text in batch]


PROMPT = [1, 0, 2, 1, 0]
TEXTS = list(product(range(3), repeat=3))
NUM = 1500


def exact(sampling: Sampling) -> Tensor:
    """Probability of every text of three tokens behind the prompt [27]."""
    target = pair("llama", 3, 0.5)[0]
    with torch.no_grad():
        z = target(torch.tensor([[*PROMPT, *text] for text in TEXTS])).logits[
            :, len(PROMPT) - 1 : -1
        ]
    p = sampling.logits(z).softmax(-1)
    return p.gather(-1, torch.tensor(TEXTS)[..., None]).double().prod(1).squeeze(-1)


def chi_square(decoder: Decoder, sampling: Sampling) -> float:
    answers = decoder.generate([PROMPT] * NUM, max_new_tokens=3, sampling=sampling)
    counts = torch.zeros(27, dtype=torch.float64)
    for answer in answers:
        counts[TEXTS.index(tuple(answer.ids))] += 1
    p = exact(sampling)
    assert counts[p == 0].sum() == 0
    p, counts = p[p > 0], counts[p > 0]
    return ((counts - NUM * p) ** 2 / (NUM * p)).sum().item()


def sampling_decoder(name: str, rule: Any, block: int) -> Decoder:
    target, draft = pair("llama", 3, 0.5)
    drafters: dict[str, Any] = {
        "model": lambda: ModelDrafter(draft),
        "lookup": PromptLookup,
        "suffix": SuffixDrafter,
    }
    return Decoder(target, drafters[name](), rule, block)


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
        ("suffix", 2, Sampling(1.0)),
    ],
)
def test_strict_sampling_is_the_target_s(name: str, block: int, sampling: Sampling):
    assert exact(sampling).sum().item() == pytest.approx(1)
    assert chi_square(sampling_decoder(name, make_rule("exact"), block), sampling) < 54


@pytest.mark.parametrize("name", ["model", "suffix"])
def test_a_draft_that_agrees_by_chance_is_accepted_and_refused(name: str):
    """The test above would say little if the draft were always or never kept."""
    decoder = sampling_decoder(name, make_rule("exact"), 2)
    answers = decoder.generate([PROMPT] * 500, max_new_tokens=3, sampling=Sampling(1.0))
    assert {length for answer in answers for length in answer.statistics.histogram} == {0, 1, 2}


@pytest.mark.parametrize(
    "rule_id, settings", [("prob", {"r": 0.05}), ("random", {"rate": 0.5}), ("top-k", {"k": 2})]
)
def test_a_loose_rule_is_noticed(rule_id: str, settings: dict[str, float]):
    assert (
        chi_square(sampling_decoder("model", make_rule(rule_id, **settings), 2), Sampling(1.0)) > 54
    )
