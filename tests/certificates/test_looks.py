"""Looks are recorded before prompts are judged; a clone may repeat what was published, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.certificates.calibration import Request
from gistgate.certificates.judged import PARTS, SOMETIMES, Ledger, Look, Looks, level, publish, way_of
from gistgate.core.utils import UserError

LOOKS = Looks("pair, task: gate", [[1, n] for n in range(20)], 0.05, "code", "choice", "Set prompts.draw to 2.")


def take(folder: Path, looks: Looks = LOOKS, sequence: str = "first", spent: float = 0.05) -> dict:
    return looks.take(looks.look(sequence, spent), folder / "local/looks.json", folder / "published.json")


def test_a_look_is_kept_in_the_local_ledger_and_its_repetition_is_free(tmp_path: Path):
    assert take(tmp_path) == take(tmp_path)
    assert len(Ledger.read(tmp_path / "local/looks.json").looks) == 1
    assert not (tmp_path / "published.json").exists()


def test_another_choice_on_the_same_prompts_is_refused_with_the_remedy(tmp_path: Path):
    take(tmp_path)
    with pytest.raises(UserError, match=r"another choice.*Set prompts\.draw to 2\."):
        take(tmp_path, replace(LOOKS, choice="another"), "second")
    take(tmp_path, replace(LOOKS, choice="another", prompts=[[2, n] for n in range(20)]), "second")


def test_the_same_choice_with_rounded_models_is_a_repetition_and_with_other_code_it_is_not(tmp_path: Path):
    take(tmp_path)
    take(tmp_path, sequence="rounded")
    with pytest.raises(UserError, match="already been judged"):
        take(tmp_path, replace(LOOKS, code="other"), "rounded again")


def test_a_clone_repeats_a_published_choice_even_with_later_code_and_is_refused_another(tmp_path: Path):
    publish(take(tmp_path), "docs/results/summary.json", tmp_path / "published.json")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "published.json").write_bytes((tmp_path / "published.json").read_bytes())
    later = replace(LOOKS, code="later")
    with pytest.warns(UserWarning, match=r"publishing this look would be refused\. Set prompts\.draw to 2\."):
        take(clone, later, "rounded")
    with pytest.raises(UserError, match="another choice"):
        take(tmp_path / "clone", replace(later, choice="mine"), "mine")
    other = later.look("rounded", 0.05)
    with pytest.warns(UserWarning, match="would be refused"):
        record = {**take(clone, later, "rounded"), "sequence": other.sequence}
    with pytest.raises(UserError, match="already been judged"):
        publish(record, "docs/results/summary.json", clone / "published.json")


def test_a_repetition_that_can_be_published_is_not_warned_of(tmp_path: Path, recwarn):
    publish(take(tmp_path), "docs/results/summary.json", tmp_path / "published.json")
    for folder, looks in (("first", LOOKS), ("second", replace(LOOKS, code="later"))):
        clone = tmp_path / folder
        clone.mkdir()
        (clone / "published.json").write_bytes((tmp_path / "published.json").read_bytes())
        take(clone, looks)
    assert not recwarn.list


def test_published_looks_name_their_place_and_are_entered_once(tmp_path: Path):
    for _ in range(2):
        publish(take(tmp_path), "docs/results/summary.json", tmp_path / "published.json")
    assert [one.published for one in Ledger.read(tmp_path / "published.json").looks] == ["docs/results/summary.json"]
    with pytest.raises(UserError, match="no record of its look"):
        publish({"claim": "gate"}, "docs/results/summary.json", tmp_path / "published.json")


def test_a_report_of_an_earlier_version_can_be_published(tmp_path: Path):
    """It says nothing about problems; a report of this version does, and its ledger reads back."""
    record = take(tmp_path)
    old = {key: value for key, value in record.items() if key != "problems"}
    publish(old, "docs/results/summary.json", tmp_path / "published.json")
    asked = replace(LOOKS, claim="other", problems=["aa", "bb"])
    publish(take(tmp_path, asked), "docs/results/summary.json", tmp_path / "published.json")
    first, second = Ledger.read(tmp_path / "published.json").looks
    assert (first.error, first.problems) == (0.05, "") and second.problems
    assert Ledger.read(tmp_path / "published.json").problems[second.problems] == ["aa", "bb"]


def test_planned_looks_divide_the_error(tmp_path: Path):
    spent = 1 - level(0.95, 2)
    assert spent == pytest.approx(0.025)
    take(tmp_path, spent=spent)
    take(tmp_path, replace(LOOKS, choice="second"), "second", spent)
    with pytest.raises(UserError, match="0 are left"):
        take(tmp_path, replace(LOOKS, choice="third"), "third", spent)


def test_an_edited_ledger_is_refused(tmp_path: Path):
    take(tmp_path)
    file = tmp_path / "local/looks.json"
    file.write_text(file.read_text().replace("0.05", "0.01"))
    with pytest.raises(UserError, match="edited"):
        take(tmp_path)


@pytest.mark.parametrize("part", [*PARTS, *SOMETIMES])
def test_another_part_of_what_decodes_or_judges_is_another_choice(tmp_path: Path, part: str):
    """Only parts that are there count, so that ledgers without them keep their hashes."""
    selection: Any = SimpleNamespace(settings=[1])
    method: Any = SimpleNamespace(settings=lambda one: {"r": one})

    def look(scope: dict[str, Any]) -> str:
        taking = LOOKS.before(method, Request((0.03,), 0.95, 20), True, scope)
        seen: list[Look] = []
        taking.looks = SimpleNamespace(ready_made=True, look=LOOKS.look, take=lambda one: seen.append(one) or {})  # type: ignore[assignment]
        taking(selection)
        return seen[0].sequence

    assert {"target", "draft", "tokenizer", "gate", "rule", "drafter", "task", "prompting"} <= {*PARTS}
    assert look({}) == look({"drafting": None}) == look({"judge": {}})
    assert len({look({}), look({part: {"a": 1}}), look({part: {"a": 2}})}) == 3


def test_weights_that_a_run_trains_may_differ_by_rounding_and_forms_and_ready_made_weights_may_not():
    decoding = {"rule": "fly", "gate": "a", "target": {"fingerprint": "a"}, "draft": {"quantisation": "int4"}}
    retrained = {**decoding, "gate": "b", "target": {"fingerprint": "b"}}
    assert way_of(retrained, ready_made=False) == way_of(decoding, ready_made=False)
    assert way_of(retrained) != way_of(decoding)
    assert way_of({**decoding, "rule_data": "counts"}) == way_of(decoding)  # older looks lack them
    for other in ({"rule": "prob"}, {"draft": {"quantisation": "int8"}}, {"drafting": {"policy": "p"}}):
        assert way_of({**decoding, **other}, ready_made=False) != way_of(decoding, ready_made=False)


def test_an_error_that_no_number_of_prompts_can_show_is_refused():
    """A plan for it would never end."""
    assert level(0.95, 2) == pytest.approx(0.975) and level(0.999, 4) < 1
    for confidence, looks in ((0.9999, 1), (0.95, 600)):
        with pytest.raises(UserError, match="Lower the confidence or the looks"):
            level(confidence, looks)
