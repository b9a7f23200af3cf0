"""Requests of several threads on one target write what each of them writes alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import Tensor

from gistgate.block import Block
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.turns import turn
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import pair, prompts

NUM = 40


class StateGate:
    """Keeps a token where a number of its state is positive, so that another request's states decide otherwise."""

    layers: frozenset[str] = frozenset({"post"})
    wants_q = False

    def __call__(self, block: Block) -> Tensor:
        return (block.hidden["post"][:, 1:, 0] > 0).float()


def answers(some: list[list[int]]) -> list[list[int]]:
    target, draft = pair("llama", noise=0.3)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("autojudge", risk=0.5), 4, gate=StateGate())
    return [one.ids for one in decoder.generate(some, max_new_tokens=NUM)]


def test_threads_do_not_read_each_others_states():
    batches = [prompts(9, seed=seed) for seed in range(6)]
    alone = [answers(batch) for batch in batches]
    assert len({str(one) for one in alone}) == 6
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            assert list(pool.map(answers, batches)) == alone


def test_a_thread_may_ask_its_target_again():
    target = pair("llama")[0]
    with turn(target), turn(target):
        pass


@pytest.mark.parametrize("same", [True, False])
def test_another_target_does_not_wait(same: bool):
    first, second = pair("llama")
    with turn(first), ThreadPoolExecutor(1) as pool:
        got = pool.submit(turn(first if same else second).acquire, blocking=False).result()
    assert got is not same
