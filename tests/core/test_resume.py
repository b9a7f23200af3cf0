"""A remembered text continues from any of its tokens as if it had been decoded from scratch."""

from __future__ import annotations

from typing import Any

import pytest

from gistgate.core.block import Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import SIZES, pair, prompts
from tests.core.continuing import continued

NUM = 12


def decoder_of(kind: str, draft: str, block: int = 4) -> Decoder:
    target, small = pair(kind)
    drafter: Any = {"model": ModelDrafter(small), "lookup": PromptLookup(), "none": None}[draft]
    return Decoder(target, drafter, make_rule("prob", r=0.02), block)


@pytest.mark.parametrize("draft", ["model", "lookup", "none"])
@pytest.mark.parametrize("kind", SIZES)
def test_from_every_token_of_a_text(kind: str, draft: str):
    decoder, (prompt,) = decoder_of(kind, draft), prompts(9)
    [(answer, memory)] = decoder.resume(
        decoder.remember([prompt]), [(len(prompt), [])], [len(prompt)], max_new_tokens=NUM
    )
    assert answer.ids == decoder.generate([prompt], max_new_tokens=NUM)[0].ids
    assert memory is not None and memory.text == prompt + answer.ids and memory.num_bytes > 0

    places = range(len(prompt) - 2, len(memory.text) - 1)
    starts = [(kept, added) for kept in places for added in ([], [17], [17, 18, 19])]
    texts = [[*memory.text[:kept], *added] for kept, added in starts]
    lengths = [min(len(text), len(prompt)) for text in texts]
    resumed = decoder.resume([memory] * len(starts), starts, lengths, max_new_tokens=NUM + 8)
    for (again, _), text, length in zip(resumed, texts, lengths, strict=True):
        already = len(text) - length
        assert again.ids[:already] == text[length:]
        left = NUM + 8 - already
        [fresh] = continued(decoder, [text], left) if already else decoder.generate([text], max_new_tokens=left)
        assert again.ids[already:] == fresh.ids
        assert again.statistics.as_dict(timed=False)["histogram"] == fresh.statistics.as_dict()["histogram"]
        assert again.reasons[already:] == fresh.reasons and len(again.reasons) == len(again.ids)


def test_a_memory_of_a_continued_text_continues_again():
    """Memories come back from a batch with holes, and from rows that were cut at a stop."""
    decoder = decoder_of("llama", "model")
    batch = prompts(5, 12, 3)
    first = decoder.resume(
        decoder.remember(batch), [(len(text), []) for text in batch], [5, 12, 3], max_new_tokens=NUM, eos_ids=range(40)
    )
    memories = [memory for _, memory in first if memory is not None]
    assert [memory.text for memory in memories] == [
        text + answer.ids for text, (answer, _) in zip(batch, first, strict=True)
    ]
    kept = [len(memory.text) - 2 for memory in memories]
    again = decoder.resume(memories, [(n, [9]) for n in kept], [5, 12, 3], max_new_tokens=30)
    for memory, n, length, (answer, later) in zip(memories, kept, (5, 12, 3), again, strict=True):
        text = [*memory.text[:n], 9]
        assert answer.ids == text[length:] + continued(decoder, [text], 30 - (n + 1 - length))[0].ids
        assert later is not None and later.text[length:] == answer.ids


def test_sampled_continuations_have_their_own_seeds():
    decoder, (prompt,) = decoder_of("llama", "model"), prompts(9)
    [memory] = decoder.remember([prompt])
    request: dict[str, Any] = {"max_new_tokens": NUM, "sampling": Sampling(1.0), "seeds": [5, 6, 5]}
    rows = decoder.resume([memory] * 3, [(9, [])] * 3, [9] * 3, remember=False, **request)
    assert [answer.ids for answer, _ in rows] == [answer.ids for answer in decoder.generate([prompt] * 3, **request)]
    assert rows[0][0].ids == rows[2][0].ids != rows[1][0].ids and all(memory is None for _, memory in rows)


def test_a_text_that_has_ended_stays_as_it_is():
    decoder, (prompt,) = decoder_of("llama", "model"), prompts(9)
    [memory] = decoder.remember([[*prompt, 1, 2]])
    rows = decoder.resume([memory] * 3, [(11, []), (11, [7]), (10, [])], [9] * 3, max_new_tokens=3, eos_ids=[2])
    ended, full, short = (answer for answer, _ in rows)
    assert (ended.ids, ended.finish, ended.statistics.forwards) == ([1, 2], "eos", 0)
    assert (full.ids, full.finish, full.statistics.forwards) == ([1, 2, 7], "length", 0)
    assert short.ids[0] == 1 and short.statistics.forwards > 0


@pytest.mark.parametrize("draft", ["model", "lookup", "none"])
def test_a_text_that_ended_leaves_nothing_to_one_that_remembers_nothing(draft: str):
    """The row that stays has read no token when the cache is packed, and must not see empty slots in their place."""
    decoder = decoder_of("llama", draft)
    for added in ([], [17, 18]):
        text = [5, *added] if added else [9]
        memories = decoder.remember([text[:1], [9, 5, 2]])
        rows = decoder.resume(memories, [(0 if added else 1, text if added else []), (3, [])], [len(text), 1],
                              max_new_tokens=6, eos_ids=[2])  # fmt: skip
        assert rows[0][0].ids == decoder.generate([text], max_new_tokens=6, eos_ids=[2])[0].ids
        assert rows[1][0].ids == [5, 2]


def test_what_no_prompt_may_hold_is_refused_in_remembered_texts_as_well():
    decoder = decoder_of("llama", "model")
    with pytest.raises(UserError, match="Prompt 1 holds the token id 1000000"):
        decoder.remember([[5], [7, 10**6]])
    memories = decoder.remember([[5, 7]])
    with pytest.raises(UserError, match="token id 1000000"):
        decoder.resume(memories, [(2, [10**6])], [2], max_new_tokens=4)
    with pytest.raises(UserError, match="2 seeds for 1 prompts"):
        decoder.resume(memories, [(2, [])], [2], max_new_tokens=4, seeds=[1, 2])


def test_a_row_may_be_decided_early():
    decoder, batch = decoder_of("llama", "model"), prompts(9, 4)
    rows = decoder.resume(
        decoder.remember(batch),
        [(9, []), (4, [])],
        [9, 4],
        max_new_tokens=NUM,
        is_decided=lambda row: "enough" if row.index == 1 and len(row.answer) >= 3 else None,
    )
    whole = decoder.generate(batch, max_new_tokens=NUM)
    assert rows[0][0].ids == whole[0].ids and rows[0][0].finish == "length"
    early = rows[1][0]
    assert early.finish == "enough" and 3 <= len(early.ids) <= 7 and early.ids == whole[1].ids[: len(early.ids)]
    assert early.reasons[-1] == Reason.OWN


def test_what_generate_refuses_is_refused_here_as_well():
    target, _ = pair("llama")
    [memory] = (decoder := Decoder(target, None, make_rule("exact"), 0)).remember([[1, 2, 3]])
    most = target.config.max_position_embeddings
    with pytest.raises(UserError, match=f"exceed the context of LlamaForCausalLM, {most} tokens"):
        decoder.resume([memory], [(2, [3])], [3], max_new_tokens=most)
    undefined = decoder.having(rule=make_rule("lenience"))
    with pytest.raises(UserError, match="not defined for greedy decoding"):
        undefined.resume([memory], [(2, [3])], [3], max_new_tokens=4)
