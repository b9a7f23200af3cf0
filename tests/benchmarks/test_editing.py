"""Requests to edit code repeat themselves; every drafter writes the greedy text on them."""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import editing
from benchmarks.edits import edits
from gistgate.errors import UserError
from tests.tiny import byte_tokenizer, tiny_pair


def test_requests_show_a_python_file_and_name_one_function_of_it():
    made = edits(20, 5, seed=1)
    assert made == edits(20, 5, seed=1) and not set(made) & set(edits(20, 5, seed=0)) and len(set(made)) == 20
    for one in made:
        names = [node.name for node in ast.parse(re.search("```python\n(.*?)```", one, re.S)[1]).body]  # type: ignore[index]
        old, new = re.findall("`(\\w+)`", one.split("```")[-1])
        assert len(set(names)) == 5 and old in names and new not in names


def test_nothing_is_timed_on_the_requests_that_choose():
    with pytest.raises(UserError, match="nothing is timed on them"):
        editing.main(seed=editing.CHOSEN_ON)


@pytest.fixture
def pair() -> Any:
    """A draft that is seldom right, so that copying pays wherever the target repeats itself."""
    target, draft = tiny_pair(noise=2.0)
    return SimpleNamespace(target=target, draft=draft, tokenizer=byte_tokenizer())


def test_all_drafters_write_the_same_text(pair: Any):
    ids = [one[:60] for one in editing.encoded(pair, edits(2, 1, seed=1))]
    policy = editing.Stopping(0.0, measured={"cost": 0.4, "verify": 1.3, "block": 4})
    field = {name: editing.decoder_of(pair, name, 4, policy if name == "hybrid" else None) for name in editing.DRAFTERS}
    answers = {name: [one.ids for one in decoder.generate(ids, max_new_tokens=24)] for name, decoder in field.items()}
    plain = [one.ids for one in editing.decoder_of(pair, "none", 0).generate(ids, max_new_tokens=24)]
    assert all(answer == plain for answer in answers.values()), answers


def test_copying_alone_and_with_the_model_are_compared_with_the_model(pair: Any):
    ids, request = (
        [one[:60] for one in editing.encoded(pair, edits(12, 1, seed=1))],
        {"max_new_tokens": 24, "eos_ids": []},
    )
    policy = editing.policy_on(pair, [2, 4], ids, request)
    assert policy.measured["block"] == 4 and policy.measured["cost"] > 0
    chosen, left_out = editing.best_blocks(pair, [2, 4], policy, ids, request)
    assert list(chosen) == list(editing.DRAFTERS) and set(chosen.values()) <= {2, 4} and not left_out
    found = editing.compare(pair, {**chosen, "suffix": 4}, policy, ids, request)
    assert list(found) == ["plain", "model", "hybrid", "suffix"] and found["suffix"]["block"] == 4
    assert found["plain"]["tau"] == 1 and all("vs_model" in found[name] for name in ("plain", "hybrid", "suffix"))
    assert all(1 <= one["tau"] <= 5 and "vs_plain" in one for name, one in found.items() if name != "plain")


def test_a_drafter_that_does_not_run_is_left_out_with_the_reason(pair: Any, monkeypatch: pytest.MonkeyPatch):
    def fastest(field: Any, _ids: Any) -> Any:
        if field[0].name == "hybrid":
            raise UserError("'hybrid' does not run with this pair (RuntimeError: no). Mend that, or leave it out.")
        return field[-1]

    monkeypatch.setattr(editing, "fastest", fastest)
    policy = editing.Stopping(0.0, measured={"cost": 0.4, "verify": 1.3, "block": 4})
    chosen, left_out = editing.best_blocks(pair, [2, 4], policy, [[5]], {"max_new_tokens": 4, "eos_ids": []})
    assert chosen == {"model": 4, "suffix": 4}
    assert list(left_out) == ["hybrid"] and "RuntimeError: no" in left_out["hybrid"]
