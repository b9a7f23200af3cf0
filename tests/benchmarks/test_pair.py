"""Two models, a file of prompts and certificates: what is timed, at which K, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pair as benchmark
from gistgate.errors import UserError
from gistgate.files import read_json
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer
from tests.certificates.proofs import point, proof_for
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

SCOPE = {"guards": [], "temperature": 0.0, "engine": "eager", "task": "sums"}
ASKED = {"prompting": {"num_fewshot": 0, "chat_template": False, "system": None}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target, its draft, a certified gate, a certificate of another tokenizer, and prompts."""
    tokenizer, (target, draft) = byte_tokenizer(), tiny_pair(noise=0.3)
    save_pair(tmp_path, target, draft, tokenizer)
    parts = identify_model(target), identify_model(draft), identify_tokenizer(tokenizer)
    gate = Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *parts))
    gate.save(tmp_path / "gate")
    proof = proof_for(gate, point(0.03, settings={"risk": 1.0}))
    replace(proof, scope={**proof.scope, **SCOPE, **ASKED}).save(tmp_path / "gate")
    replace(proof, scope={**proof.scope, **SCOPE, **ASKED, "tokenizer": "another"}).save(tmp_path / "elsewhere")
    (tmp_path / "prompts.txt").write_text("Tom has\nAnna gave\nIt is\nOne and\n")
    (tmp_path / "development.txt").write_text("Some of\nTwo of\n")
    return tmp_path


def asked(folder: Path, **options: Any) -> dict[str, Any]:
    """The result of the benchmark on these models."""
    target, draft, prompts, development = (
        str(folder / name) for name in ("target", "draft", "prompts.txt", "development.txt")
    )
    sizes = {"blocks": "2,3", "engines": "eager", "tried": 2, "max_new_tokens": 12, **options}
    benchmark.main(target, draft, prompts, development, results=folder / "results", **sizes)
    (path,) = (folder / "results").glob("pair-*.json")
    return read_json(path)  # type: ignore[no-any-return]


def test_everything_is_timed_on_the_same_prompts(folder: Path) -> None:
    places = ",".join(str(folder / name) for name in ("gate", "elsewhere"))
    found = asked(folder, gate=str(folder / "gate"), certificates=places)
    (loose,) = found["points"]
    timed = found["contenders"]
    assert {"generate", "assisted", "prompt-lookup", "plain-eager", "strict-eager", f"{loose}-eager"} <= {*timed}
    assert {entry["n"] for entry in timed.values()} == {4} and found["development"] == 2
    assert timed["strict-eager"]["tokens"] == timed["plain-eager"]["tokens"] == timed["generate"]["tokens"] > 0
    assert timed["strict-eager"]["block"] == found["strict_block"]["eager"] in {2, 3}
    assert timed["strict-eager"]["target_forwards"] < timed["plain-eager"]["target_forwards"]
    assert timed[f"{loose}-eager"]["vs_plain-eager"]["low"] > 0
    assert found["points"][loose]["certified_on"] == "eager" and found["points"][loose]["task"] == "sums"
    (why,) = found["left_out"]
    assert why.startswith(f"{folder / 'elsewhere'}: ")


def test_batches_are_decoded_without_what_takes_one_row(folder: Path) -> None:
    found = asked(folder, batch=2)
    assert not {"assisted", "prompt-lookup"} & {*found["contenders"]} and found["batch"] == 2
    assert {entry["n"] for entry in found["contenders"].values()} == {2} and not found["points"]


def test_it_fits_into_the_time_that_it_is_given(folder: Path) -> None:
    with pytest.raises(UserError, match="Nothing can be timed; generate: there was no time left"):
        asked(folder, seconds=1e-3)  # used up by the choice of K
    found = asked(folder, seconds=1e4)
    assert {entry["n"] for entry in found["contenders"].values()} == {4}
    assert found["first_call_seconds"].keys() == found["contenders"].keys()


def test_what_was_timed_before_an_interruption_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = benchmark.save

    def stopped(*arguments: Any) -> Any:
        if read_json(save(*arguments))["contenders"]["generate"]["n"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        asked(folder)
    (path,) = (folder / "results").glob("pair-*.json")
    assert {entry["n"] for entry in read_json(path)["contenders"].values()} == {2}


def test_lengths_that_are_known_are_not_chosen_again(folder: Path) -> None:
    found = asked(folder, assisted=6, lookup=4)
    assert {name: found["contenders"][name]["block"] for name in ("assisted", "prompt-lookup")} == {
        "assisted": 6,
        "prompt-lookup": 4,
    }
    with pytest.raises(UserError, match="K = 5 of assisted is none of 0, 2, 3"):
        asked(folder, assisted=5)
    with pytest.raises(UserError, match="K = 0 of prompt-lookup is none of 2, 3"):
        asked(folder, lookup=0)
    with pytest.raises(UserError, match="takes single rows"):
        asked(folder, lookup=4, batch=2)


def test_nothing_is_chosen_on_prompts_that_are_timed(folder: Path) -> None:
    (folder / "development.txt").write_text("It is\n")
    with pytest.raises(UserError, match="1 prompts of .* are also in .*: K would be chosen on what is timed"):
        asked(folder)


@pytest.mark.parametrize("wrong", [{"engines": "turbo"}, {"blocks": "0"}, {"batch": 5}])
def test_options_that_ask_for_nothing_are_refused(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        asked(folder, **wrong)
