"""What runs is what the table in docs/troubleshooting.md says, row by row."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from gistgate.build import options_from
from gistgate.core.utils import UserError
from gistgate.coverage.ask import Wish
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.choose import Choice, choose
from gistgate.models.options import NAMES, parse_settings
from gistgate.rules.history import PairCounts
from gistgate.segments.build import choose_segments
from gistgate.segments.probes import Probe, Probes
from tests.certificates.proofs import certificate, point

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
GATE = certificate(point(0.03, settings={"risk": 0.2}), point(0.05, settings={"risk": 0.3}))
NAMED = certificate(
    point(0.01, settings={"r": 0.4}), rule="prob", knob="r", block=5, headline_budget=0.01
)
KNOWN: dict[str, tuple[Certificate | None, bool]] = {
    "nothing": (None, False),
    "certified gate": (GATE, True),
    "gate without certificate": (None, True),
    "gate certified in log-probability": (certificate(score="logprob"), True),
    "named certificate": (NAMED, False),
}
"""What is known -> the certificate, and whether a gate is loaded."""
SEGMENTS: dict[str, dict[str, Any]] = {
    "certified segments": {"rule": "segment", "settings": {"threshold": 0.5}},
    "segments without certificate": {},
}


def rows() -> list[Any]:
    """The rows of the table as lists of cells."""
    table = PAGE.read_text().split("\n| known |")[1].split("\n\n")[0]
    lines = re.findall(r"^\| (.*) \|$", table, flags=re.M)
    return [
        pytest.param(
            [cell.strip() for cell in line.split("|")], id=line.split("|")[0] + line.split("|")[1]
        )
        for line in lines
    ]


def chosen(known: str, named: str) -> Choice:
    """What runs for one row."""
    said = {} if named == "nothing" else parse_settings(named.split(", "))
    options = {name: said.pop(name) for name in NAMES if name in said}
    if known in SEGMENTS:
        return choose_segments(
            Probes(Probe(4, 2), Probe(4, 2), "step", 8, SEGMENTS[known]), None, said
        )
    certified, has_gate = KNOWN[known]
    options["names_certificate"] = known == "named certificate"
    return choose(Wish(settings=said, **options), certified, has_gate=has_gate, has_draft=True)


def refusal_of(known: str, named: str) -> str:
    """The sentence that refuses a row; under a named certificate every doubt does."""
    try:
        choice = chosen(known, named)
    except UserError as error:
        return str(error)
    assert known == "named certificate"
    return "; ".join(choice.doubts)


@pytest.mark.parametrize("row", rows())
def test_every_row_of_the_page_is_what_runs(row: list[str]) -> None:
    known, named, rule, settings, block, drafter, doubt, in_lm_eval = row
    if rule == "refused":
        assert in_lm_eval == "refused"
        assert doubt in refusal_of(known, named)
        return
    choice = chosen(known, named)
    wanted = parse_settings([settings] if settings else [])
    assert (choice.rule, str(choice.block), choice.drafter) == (rule, block, drafter)
    assert {name: choice.settings[name] for name in wanted} == wanted
    assert known in SEGMENTS or choice.settings == wanted
    assert [doubt in said for said in choice.doubts] == ([True] if doubt else [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice.warn("warn")
    assert bool(caught) == bool(doubt)
    if in_lm_eval == "refused":
        with pytest.raises(UserError, match=re.escape(doubt)):
            choice.warn("refuse")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            choice.warn("refuse")


def test_the_page_has_a_row_for_everything_that_can_be_known() -> None:
    assert {row.values[0][0] for row in rows()} == {*KNOWN, *SEGMENTS}


def test_without_a_draft_model_nothing_drafts_until_a_certificate_names_a_drafter() -> None:
    assert choose(Wish()).drafter == "none"
    assert choose(Wish(), GATE, has_gate=True).drafter == "model"


def test_a_setting_that_nobody_named_was_certified_at_its_default() -> None:
    certified = certificate(point(0.03, settings={"risk": 0.2}), rule="ensemble-gate")
    looser = choose(Wish(settings={"w": 0.0}), certified, has_gate=True, has_draft=True)
    assert looser.doubts == ("w is 0.0, but 0.3 was certified",)
    assert not choose(Wish(settings={"w": 0.3}), certified, has_gate=True, has_draft=True).doubts
    named = Wish(names_certificate=True, settings={"w": 0.0})
    assert choose(named, certified).doubts == ("w is 0.0, but 0.3 was certified",)
    same = choose(Wish(names_certificate=True, settings={"w": 0.3}), certified)
    assert (same.settings, same.doubts) == ({"risk": 0.2, "w": 0.3}, ())


def test_a_preset_brings_its_own_settings_which_are_others_than_the_certified_default() -> None:
    certified = certificate(point(0.03, settings={"theta": 0.5}), rule="fly", knob="theta")
    choice = choose(Wish(rule="fly-amd", settings={"theta": 0.5}), certified, has_draft=True)
    assert (choice.rule, choice.settings) == ("fly", {"window": 5, "theta": 0.5})
    assert choice.doubts == ("window is 5, but 6 was certified",)


def test_a_rule_that_reads_a_file_takes_it_from_its_certificate(tmp_path: Path) -> None:
    file = str(tmp_path / "pairs.safetensors")
    PairCounts().save(file)
    certified = certificate(
        point(0.03, settings={"tau_c": 0.5, "counts": file}), rule="csd", knob="tau_c"
    )
    choice = choose(Wish(), certified, has_gate=True, has_draft=True)
    assert (choice.settings, choice.doubts) == ({"tau_c": 0.5, "counts": file}, ())
    said = options_from({"rule": "csd", "counts": file, "tau_c": 0.9})
    assert said.settings == {"counts": file, "tau_c": 0.9}
    assert choose(said.wish, certified, has_draft=True).doubts == (
        "tau_c 0.9 is not among the certified values (0.5)",
    )
