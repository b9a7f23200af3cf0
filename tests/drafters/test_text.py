"""Prompt lookup copies what followed the latest n-gram before; recycling follows what the target
last found likely.
"""

from typing import Any

import pytest
import torch

from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.drafters.text import PromptLookup, TokenRecycling
from tests.architectures import BATCH, SIZES
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted


@pytest.mark.parametrize(
    "settings, text, num, expected",
    [
        ({}, [1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),  # the trigram 1 2 3
        ({}, [9, 2, 3, 7, 8, 2, 3], 9, [7, 8, 2, 3]),  # only the bigram; shorter than asked for
        ({}, [5, 6, 5], 4, [6, 5]),  # only the last token
        ({}, [1, 2, 3], 4, []),  # nothing repeats
        ({}, [7], 4, []),
        ({}, [7, 7], 4, [7]),  # the match may overlap itself
        ({}, [7, 7, 7, 7], 4, [7]),
        (
            {},
            [3, 1, 2, 5, 1, 2, 6, 3, 1, 2],
            1,
            [5],
        ),  # a longer hit wins over an earlier shorter one
        ({"pick": "first"}, [1, 2, 5, 1, 2, 6, 1, 2], 1, [5]),
        ({"pick": "last"}, [1, 2, 5, 1, 2, 6, 1, 2], 1, [6]),
        ({"n_max": 1}, [4, 2, 5, 3, 2, 6, 3, 2], 1, [5]),
        ({"n_max": 2}, [4, 2, 5, 3, 2, 6, 3, 2], 1, [6]),
    ],
)
def test_continuation(settings: Any, text: list[int], num: int, expected: list[int]):
    assert PromptLookup(**settings).continuation(text, num) == expected


def test_every_row_has_its_own_length_and_the_target_reads_no_more_than_was_found():
    lookup = PromptLookup()
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3], [4, 5, 6, 7, 4]], 3) == [[2, 1], [], [5, 6, 7]]
    assert proposed(lookup, [[1, 2, 1], [1, 2, 3]], 8) == [[2, 1], []]
    assert proposed(lookup, [[1, 2], [3]], 8) == [[], []] and not lookup.gives_q


@pytest.mark.parametrize("drafter_id", ["lookup", "lookup-tree", "suffix", "recycle"])
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


def asked(
    texts: list[list[int]], *, from_text: bool = False, k: int = 2, **settings: Any
) -> TokenRecycling:
    """A drafter that was asked once and knew nothing yet."""
    drafter = TokenRecycling(k=k, from_text=from_text, **settings)
    drafter.start(len(texts))
    assert from_text or proposed(drafter, texts, 4, V) == [[]] * len(texts)
    return drafter


def test_a_chain_follows_the_likeliest_successors():
    drafter = asked([[5, 1]])
    seen(drafter, block([[]], [[2, 3]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[2]]
    seen(drafter, block([[2]], [[3, 2], [4, 1]]))
    assert proposed(drafter, [[5, 1]], 4, V) == [[3]], "the latest row counts; 3 has no successor"
    assert drafter.rows[0].table is not None
    assert drafter.rows[0].table[[1, 2, 3]].tolist() == [[3, 2], [4, 1], [-1, -1]]
    seen(drafter, block([[3]], [[2, 3], [1, 2]]))
    assert proposed(drafter, [[5, 3]], 5, V) == [[1, 2, 4]]
    assert proposed(drafter, [[5, 3]], 2, V) == [[1, 2]]


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
    drafter.restore(drafter.snapshot([0]), [0])
    assert proposed(drafter, texts[:1], 1, V) == [[]], "a new batch knows nothing"


def test_kept_successors_serve_all_rows_and_the_next_request():
    drafter = asked([[1], [5]], reset="keep")
    seen(drafter, block([[], []], [[2]], [[3]]))
    assert proposed(drafter, [[5], [1]], 1, V) == [[3], [2]]
    drafter.start(1)
    assert proposed(drafter, [[4, 5]], 1, V) == [[3]]


def test_the_prompt_fills_what_no_row_has():
    text = [1, 2, 1, 3, 6, 1]
    drafter = asked([text], from_text=True)
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
    for settings in ({}, {"from_text": False}, {"reset": "keep", "k": 1}):
        drafter = TokenRecycling(**settings)
        for block_length in (1, 8):
            for batch in (BATCH, BATCH[:1]):
                assert [one.ids for one in decoded(drafter, kind, batch, block_length)] == wanted(
                    kind, batch
                )


def test_what_was_decoded_once_is_mostly_known():
    drafter = TokenRecycling(reset="keep")
    first, again = (num_accepted(decoded(drafter, "llama", BATCH[:1])) for _ in range(2))
    assert again > first + 5


@pytest.mark.parametrize(
    "made, said",
    [(lambda: PromptLookup(n_max=0), "lookup: n_max"), (lambda: PromptLookup(pick="best"), "lookup: n_max"),
     (lambda: TokenRecycling(k=0), "recycle: k"), (lambda: TokenRecycling(reset="never"), "recycle: k"),
     (lambda: asked([[1]], k=9), "k 9 exceeds the vocabulary of 8")],
)  # fmt: skip
def test_impossible_settings_are_refused(made: Any, said: str):
    with pytest.raises(UserError, match=said):
        made()
