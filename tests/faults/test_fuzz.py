"""Readers under random input: each returns something whole or says one sentence, and never anything else."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gistgate.certificates.certificate import read_proof
from gistgate.errors import UserError
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity, TokenizerIdentity
from gistgate.plain import strict_json
from gistgate.request.stopping import Stop
from pipeline.common.yaml_file import read_yaml
from pipeline.params import parse_params
from tests.certificates.proofs import point, proof
from tests.faults.world import PARAMS
from tests.tiny import byte_tokenizer

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from([10**400, 1 << 60, -1])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
TOKENIZER = byte_tokenizer(bos=False)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a nested value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@st.composite
def changed(draw: Any, base: Any) -> Any:
    """A nested value with one to three entries replaced or taken away, keys included."""
    value = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([place for place in places(value) if place] or [()]))
        if not path:
            return draw(VALUES)
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        kind = draw(st.sampled_from(["replace", "remove", "add"]))
        if kind == "remove":
            del holder[path[-1]]
        elif kind == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = draw(VALUES)
        else:
            holder[path[-1]] = draw(VALUES)
    return value


def is_sentence(error: UserError, part: str = "") -> None:
    """What a person reads: a sentence, with `part` in it."""
    assert str(error).endswith((".", "?")) and part in str(error)


def gate() -> Gate:
    """A small gate."""
    model = ModelIdentity("m", None, "llama", 4, 2, 9, "float32", "0" * 64)
    config = GateConfig(
        {"type": "mlp", "hidden_size": 3}, {"h_tok:post": 4, "scalars": 8}, model, model,
        TokenizerIdentity("t", "1", 9), map={"type": "isotonic", "num_knots": 2}, labels={"task": "sums"},
    )  # fmt: skip
    torch.manual_seed(0)
    return Gate(config)


PROOF = asdict(
    proof(point(), point(0.03), scope={"gate": "0", "prompting": {"system": None}}, sequence=({"risk": 0.1},))
)
CONFIG = gate().config.as_json()


@given(value=changed(json.loads(json.dumps(PROOF))))
def test_a_certificate_is_read_whole_or_refused(tmp_path: Path, value: Any):
    (tmp_path / "certificate.json").write_text(json.dumps(value))
    try:
        found = read_proof(tmp_path)
    except UserError as error:
        is_sentence(error)
        return
    assert found is not None and all(p.bound <= p.budget + 1e-9 for p in found.certified)
    for budget in (None, 0.0, 1.0):
        try:
            found.operating_point(budget)
        except UserError as error:
            is_sentence(error, "no setting certified")
    found.save(tmp_path / "again")
    assert read_proof(tmp_path / "again") == found


@given(value=changed(json.loads(json.dumps(CONFIG))))
def test_a_gate_is_read_whole_or_refused(tmp_path: Path, value: Any):
    gate().save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(value))
    try:
        found = Gate.load(tmp_path)
    except UserError as error:
        is_sentence(error)
        return
    rows = torch.zeros(2, found.input_size)
    assert found.probability(rows).isfinite().all() and found.input_size == 12


@given(data=st.data())
def test_changed_bytes_of_sealed_files_are_never_accepted(tmp_path: Path, data: st.DataObject):
    gate().save(tmp_path)
    path = tmp_path / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    with pytest.raises(UserError):
        Gate.load(tmp_path)


@given(value=changed(PARAMS))
def test_parameters_are_read_or_refused(tmp_path: Path, value: Any):
    path = tmp_path / "params.yaml"
    try:
        path.write_text(yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
    except UnicodeEncodeError:
        path.write_text(json.dumps(value))
    try:
        params = parse_params(read_yaml(path))
    except UserError as error:
        is_sentence(error)
        return
    assert 0 <= params.headline_budget <= 1 and params.seed >= 0


@given(text=st.text(max_size=40) | st.text('{}[]",:0\\udau8 NaI', max_size=30))
def test_json_and_yaml_texts_are_read_or_refused(tmp_path: Path, text: str):
    with suppress(ValueError):
        json.dumps(strict_json(text), allow_nan=False, ensure_ascii=False).encode()
    path = tmp_path / "any.yaml"
    path.write_bytes(text.encode("utf-8", "replace"))
    try:
        json.dumps(read_yaml(path), default=str)
    except UserError as error:
        is_sentence(error, str(path))


@given(
    tokens=st.lists(st.integers(3, 258) | st.just(2), max_size=24),
    steps=st.lists(st.integers(1, 17), min_size=24, max_size=24),
    stops=st.lists(st.text(min_size=1, max_size=3), max_size=3),
    limit=st.integers(1, 30),
)
def test_an_answer_ends_at_the_same_token_however_it_is_cut(
    tokens: list[int], steps: list[int], stops: list[str], limit: int
):
    """Random bytes: characters begin in one token and end in another, and many tokens are no character at all."""

    def ended(sizes: list[int]) -> tuple[list[int], str | None]:
        answer: list[int] = []
        for size in sizes:
            if len(answer) == len(tokens):
                break
            kept, why = Stop(limit, {2}, stops, TOKENIZER).cut(answer, tokens[len(answer) :][:size])
            answer += tokens[len(answer) :][:kept]
            if why:
                return answer, why
        return answer, None

    assert ended(steps) == ended([1] * 24)
