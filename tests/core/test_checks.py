"""What cannot work is refused with one sentence before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.reader import num_ids
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import CONTEXT, pair, prompts
from tests.core.watching import Watch
from tests.tiny import byte_tokenizer


@dataclass(frozen=True)
class Ratio(Exact):
    """Needs to know how sure the draft was."""

    id = "ratio"
    needs = frozenset({"q"})

    def accept(self, block: Any, state: Any) -> torch.Tensor:
        assert block.q is not None and torch.allclose(block.q.sum(-1), torch.ones(1))
        return super().accept(block, state)


def decoder(**more: Any) -> Decoder:
    target, draft = pair("llama")
    parts = {"drafter": ModelDrafter(draft), "rule": make_rule("exact"), "block": 4, **more}
    return Decoder(target, **parts)


def test_a_negative_block():
    with pytest.raises(UserError, match=r"block is -1.*Use 0 for plain decoding"):
        decoder(block=-1)


def test_a_rule_without_its_gate():
    with pytest.raises(UserError, match=r"'autojudge' needs a gate. Pass gate="):
        decoder(rule=make_rule("autojudge"))


def test_a_rule_that_needs_probabilities_of_a_drafter_without():
    with pytest.raises(UserError, match=r"'ratio' needs draft probabilities.*Use the drafter 'model'"):
        decoder(rule=Ratio(), drafter=PromptLookup())
    answer = decoder(rule=Ratio()).generate(prompts(5), max_new_tokens=9)[0]
    assert answer.ids == decoder().generate(prompts(5), max_new_tokens=9)[0].ids


@pytest.mark.parametrize("wants_q", [True, False])
def test_probabilities_are_there_when_somebody_asks(wants_q: bool):
    watch = Watch(wants_q=wants_q)
    decoder(observer=watch).generate(prompts(5, 9), max_new_tokens=9)
    assert all((block.q is not None) == wants_q for block, _, _ in watch.seen if block.draft_ids.shape[1])


def test_a_recurrent_model():
    target = SimpleNamespace(_is_stateful=True, config=pair("llama")[0].config)
    with pytest.raises(UserError, match="recurrent state that cannot be rolled back"):
        Decoder(target, None, make_rule("exact"))


def test_an_empty_prompt():
    with pytest.raises(UserError, match="Prompt 1 is empty"):
        decoder().generate([[1], []], max_new_tokens=4)


@pytest.mark.parametrize("length, num, fits", [(CONTEXT - 4, 4, True), (CONTEXT - 3, 4, False), (1, CONTEXT, False)])
def test_a_prompt_that_leaves_no_room(length: int, num: int, fits: bool):
    batch = prompts(3, length)
    if fits:
        assert decoder().generate(batch, max_new_tokens=num)
    else:
        with pytest.raises(
            UserError, match=rf"{max(3, length)} tokens .* up to {num} exceed the context .*, {CONTEXT}"
        ):
            decoder().generate(batch, max_new_tokens=num)


def test_stop_strings_without_a_tokenizer():
    with pytest.raises(UserError, match="tokenizer"):
        decoder().generate(prompts(5), max_new_tokens=4, stops=["\n"])


@pytest.mark.parametrize("layer", ["last", "layer:9", "layer:", "layer:-1"])
def test_a_hidden_state_that_does_not_exist(layer: str):
    with pytest.raises(UserError, match=rf"no hidden state '{layer}'. Use 'post', 'pre' or 'layer:0' to 'layer:1'"):
        decoder(observer=Watch([layer])).generate(prompts(5), max_new_tokens=4)


def test_a_draft_that_lacks_tokens_of_the_tokenizer_is_refused():
    """Only padding beyond the tokenizer may be ignored; the target's own tokens are never cut off."""
    target, short = pair("llama")[0], ModelDrafter(pair("llama", 200)[1])
    with pytest.raises(UserError, match="knows 200 token ids and the target's tokenizer has 210.*'lookup'"):
        Decoder(target, short, make_rule("exact"), vocabulary=210)
    with pytest.raises(UserError, match="knows 200 token ids and the target's tokenizer has 259"):
        Decoder(target, short, make_rule("exact"), tokenizer=byte_tokenizer())
    assert Decoder(target, short, make_rule("exact"), vocabulary=190).vocabulary == 190


def test_a_shared_vocabulary_counts_the_smaller():
    assert decoder().vocabulary == 259 and decoder(vocabulary=200).vocabulary == 200
    small = Decoder(pair("llama")[0], ModelDrafter(pair("llama", 3, 0.5)[1]), make_rule("exact"), vocabulary=3)
    assert small.vocabulary == 3


def test_a_smaller_draft_is_refused_where_nobody_says_what_is_padding():
    """The target may write the ids that the draft lacks, and its text must not change."""
    with pytest.raises(UserError, match="draft model knows 3 token ids and the target 259.*Pass tokenizer="):
        Decoder(pair("llama")[0], ModelDrafter(pair("llama", 3, 0.5)[1]), make_rule("exact"))


def test_a_tokenizer_may_have_gaps() -> None:
    """Special tokens above reserved ids: the count of entries is not the largest id."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1, "<end>": 9})
    assert num_ids(tokenizer) == 10
