"""Requests of several threads on one target write what each of them writes alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Block
from gistgate.core.decoder import LOCKS, Decoder, model_lock
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import pair, prompts, tiny_model

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


def free(model: PreTrainedModel) -> bool:
    """Whether a thread could decode with this model now."""
    if (lock := LOCKS.get(model)) is None:
        return True
    if got := lock.acquire(blocking=False):
        lock.release()
    return bool(got)


def test_only_the_same_models_wait():
    target, draft = pair("llama")
    other = tiny_model("llama")
    with (
        model_lock([draft, target]),
        model_lock([target]),
        ThreadPoolExecutor(1) as pool,
    ):  # the same thread may ask again
        assert list(pool.map(free, (target, draft, other))) == [False, False, True]
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(free, (target, draft))) == [True, True]
