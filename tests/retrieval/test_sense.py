"""SENSE never changes a strict text and finds what it stored; its chains and tries of candidates by
definition.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.identity import TokenizerIdentity, identify_model
from gistgate.core.request import Slots
from gistgate.core.utils import UserError
from gistgate.retrieval.corpus import END
from gistgate.retrieval.sense import (
    SenseDrafter,
    SenseTree,
    Votes,
    chain,
    trie,
)
from gistgate.retrieval.store import Datastore, DatastoreConfig, Projection
from gistgate.rules import make_rule
from tests.architectures import BATCH, SIZES, greedy, pair
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted


def store_of(kind: str, batch: list[list[int]]) -> Datastore:
    """States of the target's greedy answers, standardised but not reduced."""
    target, states, answers = (
        pair(kind)[0],
        [],
        [greedy(kind, tuple(prompt), 40) for prompt in batch],
    )
    for prompt, answer in zip(batch, answers, strict=True):
        text = torch.tensor([[*prompt, *answer]])
        with torch.inference_mode():
            h_ND = target.base_model(input_ids=text).last_hidden_state[0]
        states.append(h_ND[len(prompt) - 1 : -1])
    h_ND = torch.cat(states) if states else torch.zeros(0, 32)
    spread = h_ND.std(0) if len(h_ND) else torch.ones(32)
    projection = Projection.compose(torch.zeros(32), spread, torch.eye(32), torch.zeros(32))
    config = DatastoreConfig(
        identify_model(target), TokenizerIdentity("bytes", "0", 259), "post", 0, 0
    )
    return Datastore.build(config, projection, projection(h_ND), answers)


def having(drafter: Any, **settings: float) -> Any:
    """A drafter with other settings than its own."""
    vars(drafter).update(settings)
    return drafter


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones_and_known_states_help(kind: str):
    full, empty = SenseDrafter(store_of(kind, BATCH)), SenseDrafter(store_of(kind, [[1, 2, 3]]))
    with_store, without = decoded(full, kind, BATCH), decoded(empty, kind, BATCH)
    assert [one.ids for one in with_store] == [one.ids for one in without] == wanted(kind, BATCH)
    assert num_accepted(with_store) > num_accepted(without)


def test_states_stay_with_their_row_when_others_come_and_go():
    decoder = Decoder(
        pair("llama")[0], SenseDrafter(store_of("llama", BATCH)), make_rule("exact"), 4
    )
    request: dict[str, Any] = {"max_new_tokens": 24, "eos_ids": range(0, 259, 12)}
    together = decoder.generate(BATCH, slots=Slots(2), **request)
    for prompt, one in zip(BATCH, together, strict=True):
        alone = decoder.generate([prompt], **request)[0]
        assert one.ids == alone.ids and one.statistics.as_dict(False) == alone.statistics.as_dict(
            False
        )


@pytest.mark.parametrize("kind", SIZES)
def test_a_tree_of_the_same_votes_writes_the_same_texts(kind: str):
    tree, chain = (
        SenseTree(store_of(kind, BATCH)),
        having(SenseDrafter(store_of(kind, BATCH)), min_share=0.0),
    )
    answers = decoded(tree, kind, BATCH)
    assert [one.ids for one in answers] == wanted(kind, BATCH)
    assert num_accepted(answers) >= num_accepted(decoded(chain, kind, BATCH))


def test_a_row_without_a_state_or_with_a_broken_one_reads_the_text_alone():
    drafter = SenseDrafter(store_of("llama", BATCH))
    text = [*BATCH[0], *greedy("llama", tuple(BATCH[0]), 40)[:20]]
    before = proposed(drafter, [text], 5, 259)
    assert drafter.query(drafter.rows[0], text) is None and before[0], (
        "the first round of a request has no state yet"
    )
    drafter.rows[0].keys, drafter.rows[0].tokens = [np.full(32, np.nan, np.float32)], [text[-1]]
    assert proposed(drafter, [text], 5, 259) == before
    drafter.rows[0].tokens = [text[-1] + 1]
    assert proposed(drafter, [text], 5, 259) == before


KEYS = torch.eye(32)[:4]


def small(*answers: list[int]) -> Datastore:
    """A store of a few answers, each token with a state of its own."""
    store = store_of("llama", [])
    return Datastore.build(store.config, store.projection, KEYS, answers)


def knowing(drafter: SenseDrafter, near: int, token: int) -> SenseDrafter:
    """A drafter whose only row read `token`, which the state of this number predicted."""
    drafter.start(1)
    drafter.rows[0].keys, drafter.rows[0].tokens = [KEYS[near].numpy()], [token]
    return drafter


def grown(drafter: SenseDrafter) -> list[int]:
    """The nodes of the tree behind a text that ends in 7."""
    if not drafter.rows:
        drafter.start(1)
    draft = drafter.propose(
        [[5, 7]], 3, vocabulary=259, sampling=Sampling(), uniforms=None, want_q=False
    )
    return draft.ids[draft.valid].tolist()


@pytest.mark.parametrize(("near", "token"), [(0, 8), (2, 9)])
def test_the_nearer_state_decides_between_equal_texts_and_alone_where_the_text_is_unknown(
    near: int, token: int
):
    store = small([7, 8], [7, 9])
    assert proposed(knowing(SenseDrafter(store), near, 7), [[5, 7]], 3, 259) == [[token]]
    assert proposed(knowing(SenseDrafter(store), near, 6), [[5, 6]], 3, 259) == [[token]]
    lexical = SenseDrafter(store, semantic=False)
    assert proposed(lexical, [[5, 6]], 3, 259) == [[]]
    assert proposed(having(lexical, min_share=0.0), [[5, 7]], 3, 259) == [[8]]


def test_states_fill_up_where_the_text_is_rare():
    """The text stands once in the store, behind it 8; the nearest state is followed by 9."""
    store = small([7, 8], [6, 9])
    for settings, tokens in (
        ({}, [8]),
        ({"fill": 2, "priority": 1.0}, [8]),
        ({"fill": 2, "priority": 0.0}, [9]),
    ):
        drafter = knowing(having(SenseDrafter(store), **settings), 2, 7)
        assert proposed(drafter, [[5, 7]], 3, 259) == [tokens]
    tree = having(SenseTree(store), n_min=1, fill=2, priority=0.0)
    assert grown(knowing(tree, 2, 7)) == [9], "one vote is far lighter than min_share"


def test_ids_outside_the_vocabulary_end_a_proposal():
    store = small([7, 8, 300, 9])
    assert proposed(SenseDrafter(store), [[5, 7]], 3, 259) == [[8]] and grown(SenseTree(store)) == [
        8
    ]


def test_a_folder_gives_back_the_store_and_refuses_what_does_not_fit(tmp_path: Path):
    store, folder = store_of("llama", BATCH), tmp_path / "store"
    store.save(folder)
    again = Datastore.load(folder, pair("llama")[0])
    assert torch.equal(again.keys, store.keys) and again.tokens.tolist() == store.tokens.tolist()
    with pytest.raises(UserError, match="does not fit the target"):
        Datastore.load(folder, pair("qwen2")[0])
    with pytest.raises(UserError, match="does not fit the target: its weights"):
        Datastore.load(folder, pair("llama")[1])
    keys = folder / "keys.safetensors"
    keys.write_bytes(keys.read_bytes()[:-64])
    with pytest.raises(UserError, match="is missing or truncated. Build the datastore again"):
        Datastore.load(folder, pair("llama")[0])


def random_votes(seed: int, num: int = 30, depth: int = 4) -> Votes:
    """Candidates over three tokens that end anywhere."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 3, (num, depth + 1))
    ids[np.arange(depth + 1) >= draw.integers(0, depth + 1, (num, 1))] = END
    return Votes(ids.tolist(), (draw.random(num) + 0.1).tolist())


def weight(votes: Votes, path: tuple[int, ...]) -> float:
    """What the candidates weigh that begin with a path."""
    pairs = zip(votes.rows, votes.weights, strict=True)
    return sum(weight for row, weight in pairs if tuple(row[: len(path)]) == path)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_a_chain_goes_where_most_weight_goes_and_ends_where_too_little_is_left(
    seed: int, share: float
):
    votes = random_votes(seed)
    wanted: list[int] = []
    while len(wanted) < 4:
        best = max(range(3), key=lambda token: weight(votes, (*wanted, token)))
        heaviest = weight(votes, (*wanted, best))
        if not heaviest or heaviest < share * sum(votes.weights):
            break
        wanted.append(best)
    assert chain(votes, share) == wanted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 6, 200])
def test_a_trie_has_the_heaviest_nodes(seed: int, nodes: int):
    votes = random_votes(seed)
    ids, parents = trie(votes, nodes, 0.02)
    paths: list[tuple[int, ...]] = []
    for node, (token, parent) in enumerate(zip(ids, parents, strict=True)):
        assert parent < node, "parents stand before their children"
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    every = {tuple(row[:end]) for row in votes.rows for end in range(1, 5) if END not in row[:end]}
    likely = [path for path in every if weight(votes, path) >= 0.02 * sum(votes.weights)]
    assert len(set(paths)) == len(paths) == min(nodes, len(likely))
    heaviest = sorted((weight(votes, path) for path in likely), reverse=True)[: len(paths)]
    np.testing.assert_allclose([weight(votes, path) for path in paths], heaviest)
