"""What is refused with one sentence before anything runs, and what a request brings along for some
rules.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gistgate.core.batches import decode_all
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.rules.thresholds import between_markers
from tests.architectures import COMMON, CONTEXT, pair, prompts
from tests.core.watching import HalfGate, Markers, Watch
from tests.tiny import byte_tokenizer

BATCH = prompts(5, 9, 2)
BEGIN, END = Markers().get_vocab().values()


def decoder(
    rule_id: str = "trt-relaxed", observer: Watch | None = None, **settings: object
) -> Decoder:
    target, draft = pair("llama")
    rule = make_rule(rule_id, **settings)
    return Decoder(
        target,
        ModelDrafter(draft),
        rule,
        4,
        gate=HalfGate(),
        tokenizer=Markers(),
        observer=observer,
    )


def strict(**more: Any) -> Decoder:
    target, draft = pair("llama")
    parts = {"drafter": ModelDrafter(draft), "rule": make_rule("exact"), "block": 4, **more}
    return Decoder(target, **parts)


class Asks(HalfGate):
    """Reads draft probabilities."""

    wants_q = True

    def __call__(self, block: Any) -> torch.Tensor:
        assert not block.draft_ids.shape[1] or torch.allclose(block.q.sum(-1), torch.ones(1))
        return super().__call__(block)


def test_parts_that_cannot_work_together_are_refused():
    with pytest.raises(UserError, match=r"block is -1.*Use 0 for plain decoding"):
        strict(block=-1)
    with pytest.raises(UserError, match=r"'autojudge' needs a gate. Pass gate="):
        strict(rule=make_rule("autojudge"))


STATEFUL: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 2,
        "head_dim": 8,
    },
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
    },
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_models_that_keep_other_states_are_decoded_plainly_and_their_drafts_are_refused(
    kind: str,
) -> None:
    torch.manual_seed(0)
    sizes = {**COMMON, **STATEFUL[kind], "initializer_range": 0.3, "vocab_size": 259}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **ends)).eval()
    batch = prompts(9, 5)
    answers = Decoder(model, None, make_rule("exact")).generate(batch, max_new_tokens=8)
    for ids, answer in zip(batch, answers, strict=True):
        expected = model.generate(
            torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        assert answer.ids == expected[0, len(ids) :].tolist()
    for target, drafter in ((model, PromptLookup()), (pair("llama")[0], ModelDrafter(model))):
        with pytest.raises(
            UserError, match=f"{type(model).__name__} keeps states besides .* Decode it plainly"
        ):
            Decoder(target, drafter, make_rule("exact"))


@pytest.mark.parametrize(
    ("batch", "request_", "sentence"),
    [
        ([[1], []], {}, "Prompt 1 is empty"),
        (BATCH, {"stops": ["\n"]}, "tokenizer"),
        ([[5], [7, -1]], {}, "Prompt 1 holds the token id -1"),
        ([[5], [7, 10**6]], {}, "Prompt 1 holds the token id 1000000"),
        (BATCH, {"costs": [0.5]}, "1 costs for 3 prompts"),
        (BATCH, {"seeds": [1, 2]}, "2 seeds for 3 prompts"),
        (BATCH[:1], {"seeds": [2**64]}, "does not fit into 64 bits"),
        *[
            (BATCH, {"costs": [0.5, cost, 0.5]}, "shares from 0 to 1")
            for cost in (20.0, -0.1, math.nan, math.inf)
        ],
    ],
)
def test_requests_that_cannot_be_decoded_are_refused(
    batch: Any, request_: dict[str, Any], sentence: str
):
    """Milliseconds in the place of a cost would let every token through."""
    slotted = [partial(decode_all, strict(), batch_size=2)] if "costs" in request_ else []
    for generate in (strict().generate, *slotted):
        with pytest.raises(UserError, match=sentence):
            generate(batch, max_new_tokens=4, **request_)


def test_a_prompt_that_leaves_no_room():
    assert strict().generate(prompts(3, CONTEXT - 4), max_new_tokens=4)
    for length, num in ((CONTEXT - 3, 4), (1, CONTEXT)):
        with pytest.raises(
            UserError, match=rf"{max(3, length)} tokens .* {num} exceed the context .*, {CONTEXT}"
        ):
            strict().generate(prompts(3, length), max_new_tokens=num)


@pytest.mark.parametrize("layer", ["last", "layer:9", "layer:", "layer:-1"])
def test_a_hidden_state_that_does_not_exist(layer: str):
    with pytest.raises(
        UserError, match=rf"no hidden state '{layer}'. Use 'post', 'pre' or 'layer:0' to 'layer:1'"
    ):
        strict(observer=Watch([layer])).generate(prompts(5), max_new_tokens=4)


def test_a_draft_that_lacks_tokens_of_the_tokenizer_is_refused():
    """Only padding beyond the tokenizer may be ignored; the target's own tokens are never cut
    off.
    """
    target = pair("llama")[0]
    short = ModelDrafter(pair("llama", 200)[1])
    for parts, sentence in (
        ({"vocabulary": 210}, "knows 200 token ids and the target's tokenizer has 210.*'lookup'"),
        ({"tokenizer": byte_tokenizer()}, "knows 200 token ids and the target's tokenizer has 259"),
        (
            {},
            "draft model knows 200 token ids and the target 259.*Pass tokenizer=",
        ),  # which of them are padding?
    ):
        with pytest.raises(UserError, match=sentence):
            Decoder(target, short, make_rule("exact"), **parts)
    assert Decoder(target, short, make_rule("exact"), vocabulary=190).parts.vocabulary == 190
    assert strict().parts.vocabulary == 259 and strict(vocabulary=200).parts.vocabulary == 200


def test_blocks_know_where_thinking_ends():
    """The texts before every block, and the end markers inside it, say what is thinking."""
    watch = Watch()
    thoughtful = [[BEGIN, *prompt] for prompt in BATCH[:2]] + [[BEGIN, 9, END, *BATCH[2]]]
    decoder(observer=watch).generate(thoughtful, max_new_tokens=20)
    for block, _, texts in watch.seen:
        for row, text in enumerate(texts):
            for place in range(block.draft_ids.shape[1]):
                # a begin marker inside the block counts from the next one on
                ended = END in block.draft_ids[row, :place].tolist()
                assert block.thinking[row, place] == (
                    between_markers(text, False, (BEGIN, END)) and not ended
                )
    assert {bool(flag) for block, _, _ in watch.seen for flag in block.thinking.flatten()} == {
        True,
        False,
    }


def test_outside_the_markers_the_rule_is_strict():
    strict = decoder("exact").generate(BATCH, max_new_tokens=20)
    outside = decoder(delta=1.0, k=1000).generate(BATCH, max_new_tokens=20)
    inside = decoder(delta=1.0, k=1000).generate(
        [[BEGIN, *prompt] for prompt in BATCH], max_new_tokens=20
    )
    assert [answer.ids for answer in outside] == [answer.ids for answer in strict]
    assert sum(answer.statistics.loose for answer in inside) > 0
    assert {BEGIN, END} <= set(decoder().parts.protocol_ids), (
        "the markers themselves are never loose"
    )


@pytest.mark.parametrize("many", [BATCH, sorted(BATCH, key=len)])
def test_costs_reach_the_rows_they_belong_to(many: list[list[int]]):
    """In slots the longest prompts are decoded first, and the costs go with them."""
    watch = Watch()
    slotted = Watch()
    silent = Watch()
    costs = [0.25, 0.5, 1.0]
    decoder("wisv", kappa=0.1, observer=watch).generate(many, max_new_tokens=12, costs=costs)
    costly = decoder("wisv", kappa=0.1, observer=slotted)
    decode_all(costly, many, batch_size=2, max_new_tokens=12, costs=costs)
    for block, _, texts in [*watch.seen, *slotted.seen]:
        assert block.cost.tolist() == [
            cost
            for text in texts
            for cost, prompt in zip(costs, many, strict=True)
            if text[: len(prompt)] == prompt
        ]
    decoder("wisv", kappa=0.1, observer=silent).generate(many, max_new_tokens=12)
    assert all(block.cost is None for block, _, _ in silent.seen)


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"temperature": value} for value in (1e-40, math.inf, math.nan, -1.0)],
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_sampling_at_which_nothing_can_be_drawn_is_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="Impossible sampling"):
        Sampling(**{"temperature": 1.0, **wrong})


@pytest.mark.parametrize(
    "rule_id, temperature, sentence",
    [
        ("sense", 0.7, "'sense' is not defined for temperature 0.7. Use 'prob-ratio' there."),
        ("lenience", 0.0, "'lenience' is not defined for greedy decoding. Use 'prob-ratio' there."),
    ],
)
def test_undefined_temperatures_are_refused_before_anything_runs(
    rule_id: str, temperature: float, sentence: str
):
    with pytest.raises(UserError, match=sentence):
        decoder(rule_id).generate(BATCH, max_new_tokens=4, sampling=Sampling(temperature))


@pytest.mark.parametrize("rule_id", ["kl-judge", "fsd", "ensemble"])
def test_whoever_reads_draft_probabilities_gets_them_or_refuses(rule_id: str):
    target, draft = pair("llama")
    assert Decoder(target, ModelDrafter(draft), make_rule("autojudge"), 4, gate=Asks()).generate(
        BATCH, max_new_tokens=10
    )
    with pytest.raises(UserError, match="or its gate, needs draft probabilities"):
        Decoder(target, PromptLookup(), make_rule("autojudge"), 4, gate=Asks())
    assert Decoder(target, PromptLookup(), make_rule("exact"), 4, gate=Asks())
    with pytest.raises(UserError, match="needs draft probabilities.*'prob-ratio'"):
        Decoder(target, PromptLookup(), make_rule(rule_id), 4)
