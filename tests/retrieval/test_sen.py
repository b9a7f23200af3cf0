"""SENSE's retrieval never changes a strict text, finds what it stored, and refuses stores that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gistgate.drafters.sen import SenDrafter
from gistgate.errors import UserError
from gistgate.gates.identity import TokenizerIdentity, identify_model
from gistgate.retrieval.config import DatastoreConfig
from gistgate.retrieval.projection import Projection
from gistgate.retrieval.search import ExactIndex
from gistgate.retrieval.store import Datastore
from tests.architectures import SIZES, greedy, pair, prompts
from tests.drafters.proposing import decoded, num_accepted, wanted

BATCH = prompts(5, 17, 2, 10)


def store_of(kind: str, batch: list[list[int]]) -> Datastore:
    """States of the target's greedy answers, standardised but not reduced."""
    target, states, answers = pair(kind)[0], [], [greedy(kind, tuple(prompt), 40) for prompt in batch]
    for prompt, answer in zip(batch, answers, strict=True):
        text = torch.tensor([[*prompt, *answer]])
        with torch.inference_mode():
            h_ND = target.base_model(input_ids=text).last_hidden_state[0]
        states.append(h_ND[len(prompt) - 1 : -1])
    h_ND = torch.cat(states) if states else torch.zeros(0, 32)
    spread = h_ND.std(0) if len(h_ND) else torch.ones(32)
    projection = Projection.compose(torch.zeros(32), spread, torch.eye(32), torch.zeros(32))
    config = DatastoreConfig(identify_model(target), TokenizerIdentity("bytes", "0", 259), "post", 0, 0)
    return Datastore.build(config, projection, projection(h_ND), answers)


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones_and_known_states_help(kind: str):
    full, empty = SenDrafter(store_of(kind, BATCH)), SenDrafter(store_of(kind, []))
    with_store, without = decoded(full, kind, BATCH), decoded(empty, kind, BATCH)
    assert [one.ids for one in with_store] == [one.ids for one in without] == wanted(kind, BATCH)
    assert num_accepted(with_store) > num_accepted(without)
    assert full.fallbacks == {"no state": len(BATCH)} and empty.fallbacks["empty store"] > 0


def test_without_the_semantic_part_no_state_is_asked_for():
    drafter = SenDrafter(store_of("llama", BATCH), semantic=False)
    assert not drafter.layers and [one.ids for one in decoded(drafter, "llama", BATCH)] == wanted("llama", BATCH)


def test_exact_search_finds_the_nearest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gistgate.retrieval.search.CHUNK", 7)
    keys = torch.nn.functional.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=-1).half()
    cosines, numbers = ExactIndex(keys).search(keys[[3, 41]].float(), 4)
    assert numbers[:, 0].tolist() == [3, 41]
    torch.testing.assert_close(cosines, (keys[[3, 41]].float() @ keys.float().T).topk(4).values)


def test_a_folder_gives_back_the_store(tmp_path: Path):
    store = store_of("llama", BATCH)
    store.save(tmp_path / "store")
    again = Datastore.load(tmp_path / "store", pair("llama")[0])
    assert torch.equal(again.keys, store.keys) and again.tokens.tolist() == store.tokens.tolist()
    assert again.answers == [greedy("llama", tuple(prompt), 40) for prompt in BATCH]
    assert again.first(2).answers == again.answers[:2] and torch.equal(again.first(2).keys, again.keys[:80])


def test_stores_that_do_not_fit_are_refused(tmp_path: Path):
    store_of("llama", BATCH).save(tmp_path)
    with pytest.raises(UserError, match="does not fit the target"):
        Datastore.load(tmp_path, pair("qwen2")[0])
    with pytest.raises(UserError, match="does not fit the target: its fingerprint"):
        Datastore.load(tmp_path, pair("llama")[1])
    with pytest.raises(UserError, match="states of 'post', not of 'pre'"):
        Datastore.load(tmp_path, pair("llama")[0], layer="pre")
    keys = tmp_path / "keys.safetensors"
    keys.write_bytes(keys.read_bytes()[:-64])
    with pytest.raises(UserError, match="bytes instead of"):
        Datastore.load(tmp_path, pair("llama")[0])
