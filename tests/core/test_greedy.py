"""A closed rule writes what transformers itself writes greedily, whatever is drafted."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gistgate.core.block import Draft, Reason
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup, ragged
from gistgate.rules import RULES, make_rule
from tests.architectures import BATCH, CONTEXT, SIZES, greedy, noisy_copy, pair, prompts, tiny_model
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import CLOSED

NUM = 20
"""New tokens."""


def expected(kind: str) -> list[list[int]]:
    return [greedy(kind, tuple(prompt), NUM) for prompt in BATCH]


def drafter(name: str, kind: str) -> Any:
    return ModelDrafter(pair(kind)[1]) if name == "model" else PromptLookup()


@pytest.mark.parametrize("name", ["model", "lookup"])
@pytest.mark.parametrize("kind", SIZES)
def test_a_ragged_batch_and_a_single_row_write_the_greedy_texts(kind: str, name: str):
    for block in range(1, 17):
        decoder = Decoder(pair(kind)[0], drafter(name, kind), make_rule("exact"), block)
        for batch in (BATCH, BATCH[:1]) if block in (1, 2, 3, 5, 8, 16) else (BATCH,):
            answers = decoder.generate(batch, max_new_tokens=NUM)
            assert [answer.ids for answer in answers] == expected(kind)[: len(batch)], block


@pytest.mark.parametrize(
    "rule_id", [name for name, rule in RULES.items() if rule.temperatures != "sampled"]
)
def test_every_closed_rule_writes_it_too(rule_id: str):
    rule = make_rule(rule_id, **CLOSED[rule_id])
    parts = {"gate": HalfGate(), "tokenizer": Markers()}
    decoder = Decoder(pair("llama")[0], drafter("model", "llama"), rule, 8, **parts)
    assert [answer.ids for answer in decoder.generate(BATCH, max_new_tokens=NUM)] == expected(
        "llama"
    )


@pytest.mark.parametrize("kind", SIZES)
def test_plain_decoding_without_a_draft(kind: str):
    target = pair(kind)[0]
    for decoder in (
        Decoder(target, None, make_rule("exact"), 8),
        Decoder(target, drafter("model", kind), make_rule("fly"), 0),
        Decoder(target, drafter("lookup", kind), make_rule("exact"), 0),
    ):
        answers = decoder.generate(BATCH, max_new_tokens=NUM)
        assert [answer.ids for answer in answers] == expected(kind)
        assert all(answer.statistics.mean_accepted_length == 1 for answer in answers)
        assert all(set(answer.reasons) == {Reason.OWN} for answer in answers)


@pytest.mark.parametrize("block", [1, 4, 16])
def test_a_perfect_draft_is_kept_whole(block: int):
    target = pair("llama")[0]
    for num in (1, 2, 7, NUM):
        answer = Decoder(target, ModelDrafter(target), make_rule("exact"), block).generate(
            BATCH, max_new_tokens=num
        )
        assert [row.ids for row in answer] == [text[:num] for text in expected("llama")]
        for row in answer:
            whole, last = divmod(num, block + 1)
            # the last block is as long as there is room, and the own token always finds a place
            lengths = {
                block: whole,
                **({last - 1: (whole if last - 1 == block else 0) + 1} if last else {}),
            }
            assert row.statistics.histogram == {
                length: count for length, count in lengths.items() if count
            }


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_answer_may_fill_the_context_to_the_last_token(kind: str):
    """A row near the end must not be pushed over the edge by a longer draft for its neighbour."""
    target, draft = pair(kind)
    batch = prompts(CONTEXT - 30, 3, CONTEXT - 30, seed=4)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 16)
    answers = decoder.generate(batch, max_new_tokens=30)
    assert [answer.ids for answer in answers] == [
        greedy(kind, tuple(prompt), 30) for prompt in batch
    ]


def test_no_answer_at_all():
    decoder = Decoder(pair("llama")[0], drafter("model", "llama"), make_rule("exact"), 8)
    assert decoder.generate([], max_new_tokens=NUM) == []
    batch = [list(prompt) for prompt in BATCH]
    answers = decoder.generate(batch, max_new_tokens=0)
    assert batch == BATCH, "the caller's prompts stay as they were"
    assert [(answer.ids, answer.finish, answer.statistics.forwards) for answer in answers] == [
        ([], "length", 0)
    ] * 4


def test_output_layers_of_different_padding():
    """The target's is padded to 272 rows, the draft's to 264; only 259 ids exist, and padding may
    not leak.
    """
    target = tiny_model("llama", 272)
    draft = noisy_copy(tiny_model("llama", 264, seed=3), 0.1)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4, vocabulary=259)
    text = list(BATCH[0])
    answer = decoder.generate(BATCH[:1], max_new_tokens=NUM)[0]
    assert decoder.parts.vocabulary == 259
    for token in answer.ids:
        with torch.no_grad():
            z = target(torch.tensor([text])).logits[0, -1]
        assert token == z[:259].argmax().item()
        text.append(token)


LENGTH = 24  # new tokens of the requests below
ROWS = prompts(1, 4, 11, 30)
TEXTS = {tuple(prompt): [*prompt, *greedy("llama", tuple(prompt), LENGTH)] for prompt in ROWS}


class Adversary(Drafter):
    """Proposes the right tokens up to a place that it is told, and then what it is told."""

    def __init__(self) -> None:
        self.plans: list[tuple[int, list[int]]] = [(0, [0])]
        self.asked = 0

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **_: Any) -> Draft:
        return ragged([self.chain(list(text), num_draft) for text in texts])

    def chain(self, text: list[int], num_draft: int) -> list[int]:
        right, wrong = self.plans[self.asked % len(self.plans)]
        self.asked += 1
        whole = next(full for full in TEXTS.values() if full[: len(text)] == text)
        return [*whole[len(text) : len(text) + right], *wrong][:num_draft]


class Requests(RuleBasedStateMachine):
    """One target and one adversary serve all requests; every answer is the greedy one, cut where it
    has to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.adversary = Adversary()

    @rule(
        plans=st.lists(
            st.tuples(st.integers(0, 17), st.lists(st.integers(0, 258), max_size=17)),
            min_size=1,
            max_size=4,
        )
    )
    def plan(self, plans: list[tuple[int, list[int]]]) -> None:
        self.adversary.plans = plans

    @rule(
        rows=st.lists(st.integers(0, len(ROWS) - 1), min_size=1, max_size=5),
        block=st.integers(1, 16),
        num=st.integers(1, LENGTH),
        ends=st.lists(
            st.tuples(st.integers(0, len(ROWS) - 1), st.integers(0, LENGTH - 1)), max_size=2
        ),
    )
    def ask(self, rows: list[int], block: int, num: int, ends: list[tuple[int, int]]) -> None:
        batch = [ROWS[row] for row in rows]
        eos = {TEXTS[tuple(ROWS[row])][len(ROWS[row]) + place] for row, place in ends}
        decoder: Any = Decoder(pair("llama")[0], self.adversary, make_rule("exact"), block)
        for prompt, answer in zip(
            batch, decoder.generate(batch, max_new_tokens=num, eos_ids=eos), strict=True
        ):
            text = TEXTS[tuple(prompt)][len(prompt) :][:num]
            end = next((place + 1 for place, token in enumerate(text) if token in eos), num)
            assert answer.ids == text[:end]
            assert answer.finish == ("eos" if text[end - 1] in eos else "length")
            assert answer.statistics.tokens == end and answer.statistics.loose == 0


TestAdversary = Requests.TestCase
TestAdversary.settings = settings(max_examples=15, stateful_step_count=6, deadline=None)
