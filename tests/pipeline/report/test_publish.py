"""What publishing writes: the results, the page that shows them, and the line of another run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.files import fingerprint, write_json
from pipeline.report import leaders, publish, tables
from pipeline.report.markers import begin, end, part
from pipeline.report.publish import PART
from pipeline.report.results import read_results
from pipeline.report.summary import summarise
from pipeline.studies.real.label_costs import cost_line
from tests.pipeline.report.made_up import PARAMS, folder

__all__ = ["folder"]

PLACES = (Path("reports"), Path("docs/results"), Path("README.md"))
CODE = {"code": {"modules": ["pipeline.stages.report"], "fingerprint": "f00d", "commit": "abc+"}}


def test_publish_renews_the_table_and_nothing_else(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    write_json("reports/summary.json", summary)
    Path("reports/frontier.csv").write_text("method\n")
    Path("reports/figures").mkdir()
    Path("README.md").write_text(f"# Top\n{begin(PART)}\nold\n{end(PART)}\nbottom\n")
    publish.publish(*PLACES, CODE)
    text = Path("README.md").read_text()
    assert text.startswith("# Top\n") and text.endswith("\nbottom\n") and "old" not in text
    published = json.loads(Path("docs/results/summary.json").read_text())
    shown = {"files": {"frontier.csv": fingerprint(Path("docs/results/frontier.csv"))}}
    assert published == {**json.loads(Path("reports/summary.json").read_text()), "code": CODE["code"] | shown}
    table, about = part(text, PART).rsplit("\n\n", 1)
    assert table == tables.markdown(published)
    assert "`judge` has 1.00 times that length and 1.50 times that speed." in about
    assert "commit `abc`, with changes that were not committed (fingerprint `f00d`)" in about
    assert "| judge | 4.0 | -25.0" in text


def test_another_run_gets_one_line_beside_the_published_one(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    write_json("reports/summary.json", summary)
    Path("reports/frontier.csv").write_text("method\n")
    Path("reports/figures").mkdir()
    Path("README.md").write_text(f"{begin(PART)}\n{end(PART)}\n")
    publish.publish(*PLACES, CODE)
    summary["plain"]["accuracy"] = 0.125
    write_json("reports/summary.json", summary)
    publish.publish_beside(*PLACES, "seed-2", CODE)
    lines = part(Path("README.md").read_text(), PART).splitlines()[-2:]
    assert lines[0].startswith("| published | 75.0 |")
    assert lines[1].startswith("| seed-2 | 12.5 |") and "| judge |" in lines[1]


def test_a_preset_is_led_by_its_rule():
    methods = {
        "a": {"rule": "fly-amd", "mean_accepted_length": 2.0},
        "b": {"rule": "autojudge", "mean_accepted_length": 1},
    }
    assert (leaders.best(methods, gate=False), leaders.best(methods, gate=True)) == ("a", "b")


def test_a_refused_rule_does_not_lead_with_the_figures_of_strict_decoding():
    figures = {"mean_accepted_length": 6.0, "speed": {"vs_plain": {"mean": 2.0}}}
    refused = {"rule": "ensemble", "certified_bound": None, **figures}
    strict = {"rule": "exact", "certified_bound": 0.0, **figures}
    assert leaders.best({"a": refused, "b": strict}, gate=False) == "b"
    assert leaders.fastest({"a": refused, "b": strict}) == "b"
    assert leaders.best({"a": refused}, gate=False) == "a"  # something has to be named


def test_a_refused_gate_is_called_refused_beside_the_rules():
    figures = {"mean_accepted_length": 6.0, "speed": {"vs_plain": {"mean": 2.0}}}
    strict, gate = {"rule": "exact", "certified_bound": 0.0}, {"rule": "autojudge", "certified_bound": None}
    methods = {"strict": {**strict, **figures}, "judge": {**gate, **figures}}
    refused = "`judge` is not certified, so that these are the figures of strict decoding."
    assert tables.lead({"methods": methods}).endswith(refused)
    methods["judge"]["certified_bound"] = 0.01
    assert "not certified" not in tables.lead({"methods": methods})


def test_labels_of_an_engine_that_counts_no_slots_are_shown():
    cost = {"labels": 5, "labels_per_hour": 9.0, "rollouts_per_label": 1.0, "rollout_tokens_per_label": 7.0}
    assert cost_line("label-gated", {**cost, "idle_share_of_slots": None})[-1] == "–"


def test_publish_without_markers_changes_nothing(folder):
    write_json("reports/summary.json", summarise(PARAMS, read_results(PARAMS)))
    Path("README.md").write_text("# Top\n")
    with pytest.raises(UserError, match="The page lacks the lines"):
        publish.publish(*PLACES, CODE)
    assert not Path("docs").exists()


@pytest.mark.parametrize("name", ["certify", "seed-2"])
def test_only_what_is_timed_is_published_again(name: str):
    with pytest.raises(UserError, match=f"Only the core and `table` are published again, not '{name}'"):
        publish.main(name, again=True)
