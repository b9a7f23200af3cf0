"""A second reading: its rows are those of a plain forward over everything that was read, and nothing of it remains."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.decoder import Decoder
from gistgate.core.reader import counts_slots
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import BY_SLOT, CONTEXT, SIZES, pair, prompts
from tests.core.watching import Watch

BATCH = prompts(5, 17, 2)
REFLECTION = [3, 4, 5]
TAIL = 6
NOISE = 0.1
"""Drafts that differ often."""


class Writes:
    """A tokenizer that writes every prompt as REFLECTION."""

    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert text and not add_special_tokens
        return REFLECTION


def decoded(kind: str, mode: str, watch: Watch | None = None, alpha: float = 0.5, **more: Any) -> list[Any]:
    target, draft = pair(kind, noise=NOISE)
    rule = make_rule("reflective", alpha=alpha, mode=mode, tail=TAIL)
    drafter = more.pop("drafter", None) or ModelDrafter(draft)
    decoder = Decoder(target, drafter, rule, 4, tokenizer=Writes(), observer=watch)
    return decoder.generate(BATCH, max_new_tokens=12, **more)


def read_twice(kind: str, text: list[int], draft: list[int]) -> torch.Tensor:
    """Rows [K, V] that predict the second copy of the draft, by one forward over all of it."""
    whole = [*text, *draft, *REFLECTION, *text[-TAIL:], *draft]
    with torch.no_grad():
        return pair(kind, noise=NOISE)[0](torch.tensor([whole])).logits[0, -len(draft) - 1 : -1]


@pytest.mark.parametrize("mode", ["joint", "second"])
@pytest.mark.parametrize("kind", [*SIZES, *BY_SLOT])
def test_rows_of_the_second_copy(kind: str, mode: str):
    watch = Watch(["post"])
    decoded(kind, mode, watch)
    checked = 0
    for block, _, texts in watch.seen:
        for row, text in enumerate(texts):
            num = int(block.valid[row].sum())
            differs = not bool(block.match[row, :num].all())
            if num and (differs or (mode == "joint" and not counts_slots(pair(kind)[0]))):
                expected = read_twice(kind, text, block.draft_ids[row, :num].tolist())
                torch.testing.assert_close(block.second[row, :num], expected, atol=2e-3, rtol=0)
                checked += 1
    assert checked >= 5


@pytest.mark.parametrize("mode", ["joint", "second"])
@pytest.mark.parametrize("kind", SIZES)
def test_the_first_reading_and_its_states_stay_as_they_are(kind: str, mode: str):
    """Also behind many second readings: nothing of them is left in the cache."""
    watch = Watch(["post"])
    decoded(kind, mode, watch)
    for block, _, texts in watch.seen:
        for row, text in enumerate(texts):
            num = int(block.valid[row].sum())
            whole = torch.tensor([text + block.draft_ids[row, :num].tolist()])
            with torch.no_grad():
                plain = pair(kind)[0](whole, output_hidden_states=True)
            torch.testing.assert_close(
                block.logits[row, : num + 1], plain.logits[0, len(text) - 1 :], atol=1e-3, rtol=0
            )
            torch.testing.assert_close(
                block.hidden["post"][row, : num + 1], plain.hidden_states[-1][0, len(text) - 1 :], atol=2e-4, rtol=2e-4
            )


def test_both_modes_write_the_same():
    joint, second = decoded("llama", "joint"), decoded("llama", "second")
    assert [answer.ids for answer in joint] == [answer.ids for answer in second]


def test_a_second_forward_is_counted_where_the_first_reading_differs():
    watch = Watch()
    answers = decoded("llama", "second", watch)
    again = [sum(not bool(block.match[0].all()) for block, _, texts in watch.seen if texts[0][:5] == BATCH[0])]
    joint = decoded("llama", "joint")[0].statistics.forwards
    assert answers[0].statistics.forwards == joint + again[0] > joint


def test_drafts_of_unequal_length():
    answers = decoded("llama", "joint", alpha=0.0, drafter=PromptLookup())
    strict = Decoder(pair("llama")[0], None, make_rule("exact"), 0).generate(BATCH, max_new_tokens=12)
    assert [answer.ids for answer in answers] == [answer.ids for answer in strict]


def test_without_a_tokenizer_there_is_no_prompt_to_write():
    target, draft = pair("llama")
    with pytest.raises(UserError, match="prompt in front of its second reading"):
        Decoder(target, ModelDrafter(draft), make_rule("reflective"), 4)


def test_the_second_reading_has_to_fit_the_context():
    target, draft = pair("llama")
    decoder = Decoder(target, ModelDrafter(draft), make_rule("reflective", tail=TAIL), 4, tokenizer=Writes())
    room = CONTEXT - len(BATCH[0]) - len(REFLECTION) - TAIL - 2 * 4
    assert decoder.generate(BATCH[:1], max_new_tokens=room)[0].ids
    with pytest.raises(UserError, match="exceed the context"):
        decoder.generate(BATCH[:1], max_new_tokens=room + 1)


def test_every_block_carries_one():
    watch = Watch()
    decoded("llama", "second", watch)
    blocks: list[Block] = [block for block, _, _ in watch.seen]
    assert all(block.second.shape == block.logits[:, :-1].shape for block in blocks)
