"""Prompt lookup copies what followed the latest n-gram before; recycling follows what the target last found likely."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.drafters.text import PromptLookup, TokenRecycling
from tests.architectures import SIZES, prompts
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted


@pytest.mark.parametrize(
    "text, num, expected",
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),  # the trigram 1 2 3
        ([9, 2, 3, 7, 8, 2, 3], 9, [7, 8, 2, 3]),  # only the bigram; shorter than asked for
        ([5, 6, 5], 4, [6, 5]),  # only the last token
        ([1, 2, 3], 4, []),  # nothing repeats
        ([7], 4, []),
        ([7, 7], 4, [7]),  # the match may overlap itself
        ([7, 7, 7, 7], 4, [7]),
        ([3, 1, 2, 5, 1, 2, 6, 3, 1, 2], 1, [5]),  # a longer hit wins over an earlier shorter one
    ],
)
def test_continuation(text: list[int], num: int, expected: list[int]):
    assert PromptLookup().continuation(text, num) == expected


@pytest.mark.parametrize(
    "settings, text, expected",
    [
        ({"pick": "first"}, [1, 2, 5, 1, 2, 6, 1, 2], [5]),
        ({"pick": "last"}, [1, 2, 5, 1, 2, 6, 1, 2], [6]),
        ({"n_max": 1}, [4, 2, 5, 3, 2, 6, 3, 2], [5]),
        ({"n_max": 2}, [4, 2, 5, 3, 2, 6, 3, 2], [6]),
    ],
)
def test_which_occurrence_and_the_longest_n_gram_are_settings(settings: Any, text: list[int], expected: list[int]):
    assert PromptLookup(**settings).continuation(text, 1) == expected


def test_every_row_has_its_own_length_and_the_target_reads_no_more_than_was_found():
    lookup = PromptLookup()
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3], [4, 5, 6, 7, 4]], 3) == [[2, 1], [], [5, 6, 7]]
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3]], 8) == [[2, 1], []]
    assert proposed(lookup, [[1, 2], [3]], 8) == [[], []] and not lookup.gives_q


def test_drafters_go_by_name():
    assert list(DRAFTERS) == ["model", "tree", "lookup", "lookup-tree", "suffix", "recycle", "cascade", "hybrid"]


@pytest.mark.parametrize("drafter_id", ["lookup", "lookup-tree", "suffix", "recycle"])
def test_ids_that_only_the_tokenizer_knows_are_not_proposed(drafter_id: str):
    """150 stands in the prompt, but the models know 100 ids."""
    drafter = DRAFTERS[drafter_id]()
    drafter.start(1)
    text = [1, 2, 3, 150, 4, 1, 2]
    draft = drafter.propose([text], 4, vocabulary=100, sampling=Sampling(), uniforms=None, want_q=False)
    assert draft.ids[draft.valid].tolist() == [3]


V = 8


def block(draft: list[list[int]], *tops: list[list[int]], lengths: list[int] | None = None) -> Block:
    """A block [B, K]; tops[b][j] are the likeliest tokens of row j in order."""
    ids = torch.tensor(draft, dtype=torch.long).view(len(draft), -1)
    z = torch.zeros(len(draft), ids.shape[1] + 1, V)
    for row, rows in enumerate(tops):
        for j, tokens in enumerate(rows):
            for rank, token in enumerate(tokens):
                z[row, j, token] = 9.0 - rank
    num = torch.tensor([ids.shape[1]] * len(draft) if lengths is None else lengths)
    return Block(ids, torch.arange(ids.shape[1]) < num[:, None], z)


def seen(drafter: TokenRecycling, verified: Block) -> None:
    """Show a block; what of it was accepted does not matter."""
    none = torch.zeros(len(verified.draft_ids), dtype=torch.long)
    drafter.observe(verified, Acceptance(none, none, torch.zeros_like(verified.draft_ids)))


def bare(**settings: Any) -> TokenRecycling:
    return TokenRecycling(**{"k": 2, "from_text": False, **settings})


def test_a_chain_follows_the_likeliest_successors():
    drafter = bare()
    drafter.start(1)
    assert proposed(drafter, [[5, 1]], 4, V) == [[]], "nothing is known yet"
    seen(drafter, block([[]], [[2, 3]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[2]]
    seen(drafter, block([[2]], [[3, 2], [4, 1]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[3]], "the latest row counts; 3 has no successor"
    assert drafter.rows[0].table is not None
    assert drafter.rows[0].table[[1, 2, 3]].tolist() == [[3, 2], [4, 1], [-1, -1]]
    seen(drafter, block([[3]], [[2, 3], [1, 2]]))
    assert proposed(drafter, [[5, 3]], 5, V) == [[1, 2, 4]]
    assert proposed(drafter, [[5, 3]], 2, V) == [[1, 2]]


def test_of_a_token_read_twice_the_row_of_least_depth_stays():
    drafter = bare()
    drafter.start(1)
    proposed(drafter, [[1]], 4, V)
    seen(drafter, block([[1, 1]], [[2], [3], [4]]))
    assert proposed(drafter, [[1]], 1, V) == [[2]]


def test_positions_without_a_draft_teach_nothing():
    drafter = bare()
    drafter.start(2)
    proposed(drafter, [[1], [1]], 4, V)
    seen(drafter, block([[2, 3], [2, 3]], [[2], [3], [4]], [[2], [5], [6]], lengths=[2, 1]))
    assert proposed(drafter, [[1], [1]], 4, V) == [[2, 3, 4], [2, 5]]
    assert proposed(drafter, [[3], [3]], 1, V) == [[4], []]


def test_forbidden_tokens_are_no_successors():
    drafter = bare(k=3)
    drafter.start(1)
    proposed(drafter, [[1]], 4, V)
    verified = block([[]], [[2, 3]])
    seen(
        drafter, Block(verified.draft_ids, verified.valid, verified.logits.masked_fill(verified.logits < 9, -torch.inf))
    )
    assert drafter.rows[0].table is not None and drafter.rows[0].table[1].tolist() == [2, -1, -1]


def test_a_round_without_a_proposal_teaches_nothing():
    drafter = bare()
    drafter.start(1)
    proposed(drafter, [[1]], 4, V)
    seen(drafter, block([[]], [[2]]))
    seen(drafter, block([[]], [[3]]))
    assert proposed(drafter, [[1]], 1, V) == [[2]]


def test_every_row_has_its_own_successors_until_it_leaves():
    drafter = bare()
    drafter.start(3)
    texts = [[1], [1], [1]]
    proposed(drafter, texts, 4, V)
    seen(drafter, block([[], [], []], [[2]], [[3]], [[4]]))
    assert proposed(drafter, texts, 1, V) == [[2], [3], [4]]
    drafter.select([2, 0])
    assert proposed(drafter, texts[:2], 1, V) == [[4], [2]]
    drafter.restore(drafter.snapshot([0]), [0])
    assert proposed(drafter, texts[:1], 1, V) == [[]], "a new batch knows nothing"


def test_kept_successors_serve_all_rows_and_the_next_request():
    drafter = bare(reset="keep")
    drafter.start(2)
    proposed(drafter, [[1], [5]], 4, V)
    seen(drafter, block([[], []], [[2]], [[3]]))
    assert proposed(drafter, [[5], [1]], 1, V) == [[3], [2]]
    drafter.start(1)
    assert proposed(drafter, [[4, 5]], 1, V) == [[3]]


def test_the_prompt_fills_what_no_row_has():
    drafter = TokenRecycling(k=2)
    drafter.start(1)
    text = [1, 2, 1, 3, 6, 1]
    assert proposed(drafter, [text], 4, V) == [[3, 6, 1, 3]], "the last occurrence counts"
    seen(drafter, block([[3]], [[2, 3], [7, 1]]))
    assert proposed(drafter, [text], 2, V) == [[2, 1]]
    drafter.start(2)
    assert proposed(drafter, [[4], [50, 4, 50, 60, 4]], 2, V) == [[], []], "ids outside the vocabulary are passed over"


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones(kind: str):
    batch = prompts(5, 17, 2, 10)
    for settings in ({}, {"from_text": False}, {"reset": "keep", "k": 1}):
        drafter = TokenRecycling(**settings)
        for block_length in (1, 8):
            answers = decoded(drafter, kind, batch, block_length)
            assert [one.ids for one in answers] == wanted(kind, batch)
            assert [one.ids for one in decoded(drafter, kind, batch[:1], block_length)] == wanted(kind, batch[:1])


def test_a_drafter_that_is_told_nothing_writes_the_same_text():
    """A decoder that does not know of `observe`: only the prompt is followed."""
    batch = prompts(5, 17, 2, 10)
    drafter = TokenRecycling()
    drafter.observe = lambda block, acceptance: None  # type: ignore[method-assign]
    assert [one.ids for one in decoded(drafter, "llama", batch)] == wanted("llama", batch)


def test_what_was_decoded_once_is_mostly_known():
    batch = prompts(5, 17, 2, 10)
    drafter = TokenRecycling(reset="keep")
    first, again = (num_accepted(decoded(drafter, "llama", batch[:1])) for _ in range(2))
    assert again > first + 5


@pytest.mark.parametrize("wrong", [{"n_max": 0}, {"pick": "best"}])
def test_impossible_settings_of_a_lookup_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="lookup: n_max"):
        PromptLookup(**wrong)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"reset": "never"}])
def test_impossible_settings_of_recycling_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="recycle: k"):
        TokenRecycling(**wrong)
    with pytest.raises(UserError, match="k 9 exceeds the vocabulary of 8"):
        proposed(bare(k=9), [[1]], 1, V)
