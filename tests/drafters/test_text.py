"""Prompt lookup copies what followed the latest n-gram before; recycling follows what the target
last found likely.
"""

import pytest
import torch

from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.drafters import DRAFTERS
from gistgate.drafters.text import PromptLookup, TokenRecycling
from tests.architectures import BATCH, SIZES
from tests.drafters.proposing import decoded, proposed, wanted


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
        ([1, 2, 5, 1, 2, 6, 1, 2], 1, [5]),  # of equals the first
        ([0, 1, 2, 3, 5, 9, 1, 2, 3, 6, 0, 1, 2, 3], 1, [5]),  # four tokens are not looked for
    ],
)
def test_continuation(text: list[int], num: int, expected: list[int]):
    assert PromptLookup().continuation(text, num) == expected


def test_every_row_has_its_own_length_and_the_target_reads_no_more_than_was_found():
    lookup = PromptLookup()
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3], [4, 5, 6, 7, 4]], 3) == [[2, 1], [], [5, 6, 7]]
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3]], 8) == [[2, 1], []]
    assert proposed(lookup, [[1, 2], [3]], 8) == [[], []] and not lookup.gives_q


@pytest.mark.parametrize("drafter_id", ["lookup", "suffix", "recycle"])
def test_ids_that_only_the_tokenizer_knows_are_not_proposed(drafter_id: str):
    """150 stands in the prompt, but the models know 100 ids."""
    drafter = DRAFTERS[drafter_id]()
    drafter.start(1)
    text = [1, 2, 3, 150, 4, 1, 2]
    draft = drafter.propose(
        [text], 4, vocabulary=100, sampling=Sampling(), uniforms=None, want_q=False
    )
    assert draft.ids[draft.valid].tolist() == [3]


V = 8


def block(
    draft: list[list[int]], *tops: list[list[int]], lengths: list[int] | None = None
) -> Block:
    """A block [B, K]; tops[b][j] are the likeliest tokens of row j in order."""
    ids = torch.tensor(draft, dtype=torch.long).view(len(draft), -1)
    z = torch.zeros(len(draft), ids.shape[1] + 1, V)
    for row, rows in enumerate(tops):
        for j, tokens in enumerate(rows):
            z[row, j, tokens] = torch.arange(9.0, 9.0 - len(tokens), -1)
    num = torch.tensor([ids.shape[1]] * len(draft) if lengths is None else lengths)
    return Block(ids, torch.arange(ids.shape[1]) < num[:, None], z)


def seen(drafter: TokenRecycling, verified: Block) -> None:
    """Show a block; what of it was accepted does not matter."""
    none = torch.zeros(len(verified.draft_ids), dtype=torch.long)
    drafter.observe(verified, Acceptance(none, none, torch.zeros_like(verified.draft_ids)))


def asked(texts: list[list[int]]) -> TokenRecycling:
    """A drafter that was asked once and whose prompts repeat nothing."""
    drafter = TokenRecycling()
    drafter.start(len(texts))
    assert proposed(drafter, texts, 4, V) == [[]] * len(texts)
    return drafter


def test_a_chain_follows_the_likeliest_successors():
    drafter = asked([[5, 1]])
    seen(drafter, block([[]], [[2, 3]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[2]]
    seen(drafter, block([[2]], [[3, 2], [4, 1]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[3]], "the latest row counts; 3 has no successor"
    seen(drafter, block([[3]], [[2, 3], [7, 2]]))
    assert proposed(drafter, [[5, 3]], 5, V) == [[7]]
    assert proposed(drafter, [[5, 1]], 5, V) == [[2, 4]]
    assert proposed(drafter, [[5, 1]], 1, V) == [[2]]


def test_what_a_block_teaches():
    drafter = asked([[1]])
    seen(drafter, block([[1, 1]], [[2], [3], [4]]))
    assert proposed(drafter, [[1]], 1, V) == [[2]], (
        "of a token read twice the row of least depth stays"
    )
    drafter = asked([[1], [1]])
    seen(drafter, block([[2, 3], [2, 3]], [[2], [3], [4]], [[2], [5], [6]], lengths=[2, 1]))
    assert proposed(drafter, [[1], [1]], 4, V) == [[2, 3, 4], [2, 5]]
    assert proposed(drafter, [[3], [3]], 1, V) == [
        [4],
        [],
    ], "positions without a draft teach nothing"
    drafter = asked([[1]])
    seen(drafter, block([[]], [[2]]))
    seen(drafter, block([[]], [[3]]))
    assert proposed(drafter, [[1]], 1, V) == [[2]], "a round without a proposal teaches nothing"


def test_every_row_has_its_own_successors_until_it_leaves():
    texts = [[1], [1], [1]]
    drafter = asked(texts)
    seen(drafter, block([[], [], []], [[2]], [[3]], [[4]]))
    assert proposed(drafter, texts, 1, V) == [[2], [3], [4]]
    drafter.select([2, 0])
    assert proposed(drafter, texts[:2], 1, V) == [[4], [2]]
    drafter.start(1)
    assert proposed(drafter, texts[:1], 1, V) == [[]], "a new batch knows nothing"


def test_the_prompt_fills_what_no_row_has():
    text = [1, 2, 1, 3, 6, 1]
    drafter = TokenRecycling()
    assert proposed(drafter, [text], 4, V) == [[3, 6, 1, 3]], "the last occurrence counts"
    seen(drafter, block([[3]], [[2, 3], [7, 1]]))
    assert proposed(drafter, [text], 2, V) == [[2, 1]]
    drafter.start(2)
    assert proposed(drafter, [[4], [50, 4, 50, 60, 4]], 2, V) == [
        [],
        [],
    ], "ids outside the vocabulary are passed over"


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones(kind: str):
    drafter = TokenRecycling()
    for block_length in (1, 8):
        for batch in (BATCH, BATCH[:1]):
            answers = decoded(drafter, kind, batch, block_length)
            assert [answer.ids for answer in answers] == wanted(kind, batch)
