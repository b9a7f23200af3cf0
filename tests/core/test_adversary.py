"""A drafter that tries to lead the decoder astray, as a state machine over requests that share everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from torch import Tensor

from gistgate.core.block import Draft, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.drafters.text import ragged
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

NUM = 24
BATCH = prompts(1, 4, 11, 30)
TEXTS = {tuple(prompt): [*prompt, *greedy("llama", tuple(prompt), NUM)] for prompt in BATCH}


class Adversary(Drafter):
    """Proposes the right tokens up to a place that it is told, and then what it is told."""

    def __init__(self) -> None:
        self.plans: list[tuple[int, list[int]]] = [(0, [0])]
        self.asked = 0

    def propose(
        self,
        texts: Sequence[Sequence[int]],
        num_draft: int,
        *,
        vocabulary: int,
        sampling: Sampling,
        uniforms: Tensor | None,
        want_q: bool,
    ) -> Draft:
        return ragged([self.chain(list(text), num_draft) for text in texts])

    def chain(self, text: list[int], num_draft: int) -> list[int]:
        right, wrong = self.plans[self.asked % len(self.plans)]
        self.asked += 1
        whole = next(full for full in TEXTS.values() if full[: len(text)] == text)
        return [*whole[len(text) : len(text) + right], *wrong][:num_draft]


class Requests(RuleBasedStateMachine):
    """One target and one adversary serve all requests; every answer is the greedy one, cut where it has to end."""

    def __init__(self) -> None:
        super().__init__()
        self.adversary = Adversary()

    @rule(
        plans=st.lists(
            st.tuples(st.integers(0, 17), st.lists(st.integers(0, 258), max_size=17)), min_size=1, max_size=4
        )
    )
    def plan(self, plans: list[tuple[int, list[int]]]) -> None:
        self.adversary.plans = plans

    @rule(
        rows=st.lists(st.integers(0, len(BATCH) - 1), min_size=1, max_size=5),
        block=st.integers(1, 16),
        num=st.integers(1, NUM),
        ends=st.lists(st.tuples(st.integers(0, len(BATCH) - 1), st.integers(0, NUM - 1)), max_size=2),
    )
    def ask(self, rows: list[int], block: int, num: int, ends: list[tuple[int, int]]) -> None:
        batch = [BATCH[row] for row in rows]
        eos = {TEXTS[tuple(BATCH[row])][len(BATCH[row]) + place] for row, place in ends}
        decoder: Any = Decoder(pair("llama")[0], self.adversary, make_rule("exact"), block)
        for prompt, answer in zip(batch, decoder.generate(batch, max_new_tokens=num, eos_ids=eos), strict=True):
            text = TEXTS[tuple(prompt)][len(prompt) :][:num]
            end = next((place + 1 for place, token in enumerate(text) if token in eos), num)
            assert answer.ids == text[:end]
            assert answer.finish == ("eos" if text[end - 1] in eos else "length")
            assert answer.statistics.tokens == end and answer.statistics.loose == 0


TestAdversary = Requests.TestCase
TestAdversary.settings = settings(max_examples=15, stateful_step_count=6, deadline=None)
