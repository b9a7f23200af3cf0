"""A calibration prompt is judged once: what the ledger admits, what it refuses, and that it notices edits."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gistgate.certificates.judged import Ledger, Look, digest, fingerprint_of, hash_of, sequence_of
from gistgate.core.utils import UserError

OLD = [hash_of([1, number]) for number in range(20)]
FRESH = [hash_of([2, number]) for number in range(20)]


def look(hashes: list[str] = OLD, sequence: str = "first", claim: str = "fly", spent: float = 0.05) -> Look:
    return Look(claim, fingerprint_of(hashes), "code", sequence, spent)


def taken(*looks: tuple[Look, list[str]], error: float = 0.05) -> Ledger:
    ledger = Ledger()
    for one, hashes in looks:
        ledger.admit(one, hashes, error)
    return ledger


def test_a_repeated_look_is_admitted_and_entered_once():
    assert len(taken((look(), OLD), (look(), OLD)).looks) == 1


def test_another_sequence_on_the_same_prompts_is_refused():
    ledger = taken((look(), OLD))
    with pytest.raises(UserError, match="already been judged for 'fly'.*Draw fresh calibration prompts"):
        ledger.admit(look(sequence="second"), OLD, 0.05)
    assert len(ledger.looks) == 1


def test_one_shared_prompt_is_enough_for_a_refusal():
    ledger = taken((look(), OLD))
    mixed = [*FRESH, OLD[0]]
    with pytest.raises(UserError, match="already been judged"):
        ledger.admit(look(mixed, "second"), mixed, 0.05)


def test_fresh_prompts_and_other_claims_are_free():
    ledger = taken((look(), OLD), (look(FRESH, "second"), FRESH), (look(claim="prob"), OLD))
    assert [one.claim for one in ledger.looks] == ["fly", "fly", "prob"]


def test_planned_looks_divide_the_error():
    ledger = taken((look(spent=0.025), OLD), (look(sequence="second", spent=0.025), OLD))
    with pytest.raises(UserError, match="0 are left"):
        ledger.admit(look(sequence="third", spent=0.025), OLD, 0.05)


def test_a_repetition_at_another_error_is_another_look():
    ledger = taken((look(), OLD))
    with pytest.raises(UserError, match="already been judged"):
        ledger.admit(look(spent=0.01), OLD, 0.05)


@pytest.mark.parametrize(("way", "is_same"), [("rule, K", True), ("another K", False), ("", False)])
def test_an_equal_choice_excuses_another_sequence_only_for_the_same_way_of_decoding(way: str, is_same: bool):
    old = replace(look(), choice="choice", way="rule, K")
    assert replace(old, sequence="rounded", way=way).repeats(old) is is_same
    assert replace(old, code="later", sequence="rounded", way=way).repeats(old, rerun=True) is is_same


def test_entries_without_what_came_later_keep_their_form_and_hash(tmp_path: Path):
    ledger = taken((look(), OLD))
    ledger.write(tmp_path / "looks.json")
    content = json.loads((tmp_path / "looks.json").read_text())
    assert not {"way", "error", "problems"} & content["looks"][0].keys() and "problems" not in content
    old = {key: value for key, value in asdict(look()).items() if key not in ("way", "error", "problems")}
    assert look().hash == digest(old)
    for later in ({"way": "rule, K"}, {"error": 0.05}, {"problems": "p"}):
        assert replace(look(), **later).hash != look().hash


@pytest.mark.parametrize(("said", "left"), [(0.05, 0.0), (0.1, 0.05), (0.0, 0.0)])
def test_a_lower_confidence_later_buys_no_look(said: float, left: float):
    """Whoever fails at 95 % would otherwise look again with two looks at 90 %, each of which says 95 %."""
    ledger = taken((replace(look(), error=said), OLD))
    assert ledger.left("fly", OLD, 0.1)[1] == pytest.approx(left)
    again = replace(look(sequence="second"), error=0.1)
    if left:
        ledger.admit(again, OLD, 0.1)
    else:
        with pytest.raises(UserError, match="spent 0.05 of the error 0.05"):
            ledger.admit(again, OLD, 0.1)


def test_a_problem_that_is_asked_in_another_way_was_judged_all_the_same(tmp_path: Path):
    """Another system text gives every prompt other token ids."""
    problems, ledger = ["aa", "bb"], Ledger()
    ledger.admit(replace(look(), problems=fingerprint_of(problems)), OLD, 0.05, problems=problems)
    ledger.write(tmp_path / "looks.json")
    ledger = Ledger.read(tmp_path / "looks.json")
    other = replace(look(FRESH, "second"), problems=fingerprint_of(["bb", "cc"]))
    assert ledger.affords(other, FRESH, 0.05)
    with pytest.raises(UserError, match="already been judged"):
        ledger.admit(other, FRESH, 0.05, problems=["bb", "cc"])
    ledger.admit(replace(other, problems=fingerprint_of(["cc"])), FRESH, 0.05, problems=["cc"])


def test_it_comes_back_from_its_file(tmp_path: Path):
    ledger = taken((look(), OLD), (look(FRESH, "second"), FRESH))
    ledger.write(tmp_path / "looks.json")
    assert Ledger.read(tmp_path / "looks.json") == ledger
    assert Ledger.read(tmp_path / "none.json") == Ledger()


@pytest.mark.parametrize("edit", ["spent", "claim", "removed", "last", "prompt", "form"])
def test_an_edited_ledger_is_noticed(tmp_path: Path, edit: str):
    path = tmp_path / "looks.json"
    taken((look(), OLD), (look(FRESH, "second"), FRESH), (look(claim="prob"), OLD)).write(path)
    content = json.loads(path.read_text())
    if edit == "spent":
        content["looks"][0]["spent"] = 0.01
    elif edit == "claim":
        content["looks"][1]["claim"] = "typical"
    elif edit == "removed":
        del content["looks"][1]
    elif edit == "last":
        del content["looks"][2]
    elif edit == "prompt":
        content["draws"][fingerprint_of(OLD)] = " ".join(OLD[1:])
    else:
        content = [content]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="Restore it from Git"):
        Ledger.read(path)


def test_the_order_of_prompts_does_not_matter_and_that_of_settings_does():
    assert fingerprint_of(OLD) == fingerprint_of(OLD[::-1]) != fingerprint_of(FRESH)
    strict, loose = {"risk": 0.01}, {"risk": 0.2}
    assert sequence_of([strict, loose], [0.03], "exact") != sequence_of([loose, strict], [0.03], "exact")
    assert sequence_of([strict], [0.03, 0.01], "exact") == sequence_of([strict], [0.01, 0.03], "exact")
