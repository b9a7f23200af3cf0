"""What requests of one decoder share, and texts that are remembered and continued."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import Tensor

from gistgate.core.block import Block, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import SIZES, greedy, pair, prompts
from tests.core.watching import continued

BATCH = prompts(5, 9, 7)
NUM = 10


class StateGate:
    """Keeps a token where a number of its state is positive, so that another request's states
    decide otherwise.
    """

    layers: frozenset[str] = frozenset({"post"})
    wants_q = False

    def __call__(self, block: Block) -> Tensor:
        return (block.hidden["post"][:, 1:, 0] > 0).float()


def answers(batch: list[list[int]]) -> list[list[int]]:
    target, draft = pair("llama", noise=0.3)
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule("autojudge", risk=0.5), 4, gate=StateGate()
    )
    return [answer.ids for answer in decoder.generate(batch, max_new_tokens=40)]


def test_threads_do_not_read_each_others_states():
    batches = [prompts(9, seed=seed) for seed in range(6)]
    alone = [answers(batch) for batch in batches]
    assert len({str(texts) for texts in alone}) == 6
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            assert list(pool.map(answers, batches)) == alone


def capped(rule: str = "exact", most: int | None = None, **settings: float) -> Decoder:
    target, draft = pair("llama")
    return Decoder(
        target, ModelDrafter(draft), make_rule(rule, **settings), 4, speculate_up_to=most
    )


def test_a_larger_batch_is_plain_and_says_so_and_up_to_that_number_it_speculates():
    for decoder in (capped(most=2), capped("prob", most=0, r=1e-9)):
        answers = decoder.generate(BATCH, max_new_tokens=NUM)
        assert [answer.statistics.forwards for answer in answers] == [NUM] * 3
        assert (
            sum(answer.statistics.draft_forwards + answer.statistics.loose for answer in answers)
            == 0
        )
        assert [answer.ids for answer in answers] == [
            greedy("llama", tuple(ids), NUM) for ids in BATCH
        ]
    answers = capped(most=3).generate(BATCH, max_new_tokens=NUM)
    assert all(answer.statistics.draft_forwards > 0 for answer in answers)


def test_it_holds_for_continued_texts_as_well():
    loose = capped("prob", most=2, r=1e-9)
    memories = loose.remember(BATCH)
    done = loose.resume(
        memories,
        [(len(ids) - 1, ids[-1:]) for ids in BATCH],
        [*map(len, BATCH)],
        max_new_tokens=NUM,
    )
    assert [answer.ids for answer, _ in done] == [greedy("llama", tuple(ids), NUM) for ids in BATCH]
    assert all(answer.statistics.forwards == NUM for answer, _ in done)
    again = [memory for _, memory in done][
        :2
    ]  # they know nothing of the draft model, which reads the texts again
    going = loose.resume(
        again,
        [(len(memory.text) - 1, memory.text[-1:]) for memory in again],
        [5, 9],
        max_new_tokens=2 * NUM,
    )
    assert all(answer.statistics.draft_forwards > 0 for answer, _ in going)


LENGTH = 12


def decoder_of(kind: str, draft: str, block: int = 4) -> Decoder:
    target, small = pair(kind)
    drafter: Any = {"model": ModelDrafter(small), "lookup": PromptLookup(), "none": None}[draft]
    return Decoder(target, drafter, make_rule("prob", r=0.02), block)


@pytest.mark.parametrize("draft", ["model", "lookup", "none"])
@pytest.mark.parametrize("kind", SIZES)
def test_from_every_token_of_a_text(kind: str, draft: str):
    decoder = decoder_of(kind, draft)
    (prompt,) = prompts(9)
    [(answer, memory)] = decoder.resume(
        decoder.remember([prompt]), [(len(prompt), [])], [len(prompt)], max_new_tokens=LENGTH
    )
    assert answer.ids == decoder.generate([prompt], max_new_tokens=LENGTH)[0].ids
    assert memory is not None and memory.text == prompt + answer.ids and memory.num_bytes > 0

    places = range(len(prompt) - 2, len(memory.text) - 1)
    starts = [(num, added) for num in places for added in ([], [17], [17, 18, 19])]
    texts = [[*memory.text[:num], *added] for num, added in starts]
    lengths = [min(len(text), len(prompt)) for text in texts]
    resumed = decoder.resume([memory] * len(starts), starts, lengths, max_new_tokens=LENGTH + 8)
    for (again, _), text, length in zip(resumed, texts, lengths, strict=True):
        already = len(text) - length
        assert again.ids[:already] == text[length:]
        left = LENGTH + 8 - already
        [fresh] = (
            continued(decoder, [text], left)
            if already
            else decoder.generate([text], max_new_tokens=left)
        )
        assert again.ids[already:] == fresh.ids
        assert (
            again.statistics.as_dict(timed=False)["histogram"]
            == fresh.statistics.as_dict()["histogram"]
        )
        assert again.reasons[already:] == fresh.reasons and len(again.reasons) == len(again.ids)


def test_a_memory_of_a_continued_text_continues_again():
    """Memories come back from a batch with holes, and from rows that were cut at a stop."""
    decoder = decoder_of("llama", "model")
    batch = prompts(5, 12, 3)
    first = decoder.resume(
        decoder.remember(batch),
        [(len(text), []) for text in batch],
        [5, 12, 3],
        max_new_tokens=LENGTH,
        eos_ids=range(40),
    )
    memories = [memory for _, memory in first if memory is not None]
    assert [memory.text for memory in memories] == [
        text + answer.ids for text, (answer, _) in zip(batch, first, strict=True)
    ]
    lengths = [len(memory.text) - 2 for memory in memories]
    again = decoder.resume(memories, [(n, [9]) for n in lengths], [5, 12, 3], max_new_tokens=30)
    for memory, n, length, (answer, later) in zip(
        memories, lengths, (5, 12, 3), again, strict=True
    ):
        text = [*memory.text[:n], 9]
        assert (
            answer.ids == text[length:] + continued(decoder, [text], 30 - (n + 1 - length))[0].ids
        )
        assert later is not None and later.text[length:] == answer.ids


def test_sampled_continuations_have_their_own_seeds():
    decoder = decoder_of("llama", "model")
    (prompt,) = prompts(9)
    [memory] = decoder.remember([prompt])
    request: dict[str, Any] = {
        "max_new_tokens": LENGTH,
        "sampling": Sampling(1.0),
        "seeds": [5, 6, 5],
    }
    rows = decoder.resume([memory] * 3, [(9, [])] * 3, [9] * 3, remember=False, **request)
    assert [answer.ids for answer, _ in rows] == [
        answer.ids for answer in decoder.generate([prompt] * 3, **request)
    ]
    assert rows[0][0].ids == rows[2][0].ids != rows[1][0].ids and all(
        memory is None for _, memory in rows
    )


def test_a_text_that_has_ended_stays_as_it_is():
    decoder = decoder_of("llama", "model")
    (prompt,) = prompts(9)
    [memory] = decoder.remember([[*prompt, 1, 2]])
    rows = decoder.resume(
        [memory] * 3, [(11, []), (11, [7]), (10, [])], [9] * 3, max_new_tokens=3, eos_ids=[2]
    )
    ended, full, short = (answer for answer, _ in rows)
    assert (ended.ids, ended.finish, ended.statistics.forwards) == ([1, 2], "eos", 0)
    assert (full.ids, full.finish, full.statistics.forwards) == ([1, 2, 7], "length", 0)
    assert short.ids[0] == 1 and short.statistics.forwards > 0


@pytest.mark.parametrize("draft", ["model", "lookup", "none"])
def test_a_text_that_ended_leaves_nothing_to_one_that_remembers_nothing(draft: str):
    """The row that stays has read no token when the cache is packed, and must not see empty slots
    in their place.
    """
    decoder = decoder_of("llama", draft)
    for added in ([], [17, 18]):
        text = [5, *added] if added else [9]
        memories = decoder.remember([text[:1], [9, 5, 2]])
        continuations = [(0, text) if added else (1, []), (3, [])]
        request: dict[str, Any] = {"max_new_tokens": 6, "eos_ids": [2]}
        rows = decoder.resume(memories, continuations, [len(text), 1], **request)
        assert rows[0][0].ids == decoder.generate([text], max_new_tokens=6, eos_ids=[2])[0].ids
        assert rows[1][0].ids == [5, 2]


def test_what_generate_refuses_is_refused_of_remembered_texts_as_well():
    decoder = decoder_of("llama", "model")
    with pytest.raises(UserError, match="Prompt 1 holds the token id 1000000"):
        decoder.remember([[5], [7, 10**6]])
    memories = decoder.remember([[5, 7, 9]])
    limit = decoder.target.config.max_position_embeddings
    for added, request, sentence in (
        ([10**6], {}, "token id 1000000"),
        ([], {"seeds": [1, 2]}, "2 seeds for 1 prompts"),
        ([3], {"max_new_tokens": limit}, f"exceed the context of LlamaForCausalLM, {limit} tokens"),
    ):
        with pytest.raises(UserError, match=sentence):
            decoder.resume(
                memories, [(2, added)], [2 + len(added)], **{"max_new_tokens": 4, **request}
            )
    with pytest.raises(UserError, match="not defined for greedy decoding"):
        decoder.having(rule=make_rule("lenience")).resume(
            memories, [(2, [3])], [3], max_new_tokens=4
        )
