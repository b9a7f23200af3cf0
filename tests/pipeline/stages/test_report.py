"""From fake results of three methods to summary, frontier, figures, page, README: numbers that the head can check."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gistgate.core.files import read_json, write_json, write_json_lines
from gistgate.core.utils import UserError
from pipeline.report import tables
from pipeline.report.summary import as_csv, certified_bound, frontier, read_results, summarise
from pipeline.report.tables import page
from pipeline.stages import report
from tests.pipeline.report.made_up import LENGTHS, PARAMS, calibration, folder

__all__ = ["folder"]


def test_summary_has_the_promised_schema_and_numbers(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    about = {"pair", "task", "seed", "headline_budget", "looks", "timed", "idle_share_of_slots"}
    assert set(summary) == {*about, "plain", "methods", "heads"}
    judge = summary["methods"]["judge"]
    assert set(judge) == {
        "rule",
        "drafter",
        "block",
        "timed_block",
        "budget",
        "confidence",
        "knob",
        "certified_bound",
        "certificates",
        "accuracy",
        "accuracy_difference",
        "cut",
        "mean_accepted_length",
        "loose_per_100",
        "speed",
        "adversarial",
        "target_forwards",
        "n",
    }
    assert judge["accuracy_difference"]["mean"] == -0.25
    assert judge["speed"]["vs_plain"]["mean"] == 2.0 and judge["speed"]["vs_assisted"]["mean"] == 3.0
    assert judge["speed"]["vs_strict"] == {"mean": 1.5, "low": 1.5, "high": 1.5}
    assert judge["certified_bound"] == 0.04 and judge["target_forwards"] == 10
    assert summary["methods"]["prob"]["certified_bound"] is None
    assert summary["methods"]["exact"]["certified_bound"] == 0.0
    lookup = replace(PARAMS.method("exact"), drafter="lookup")
    others = replace(PARAMS, methods={**PARAMS.methods, "prob": lookup})
    found = replace(read_results(PARAMS), calibration={"prob": calibration("judge", None, True), "judge": {}})
    assert certified_bound("prob", others, found) == 0.04, "rounding changes answers of another drafter"
    assert certified_bound("prob", others, replace(found, calibration={})) == 0.0
    assert summary["heads"] == {"logistic": {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None}}


def test_idle_slots_are_told_where_every_method_tells_them(folder):
    """Results that were made before the stages counted slots stay readable."""
    old = read_results(PARAMS)
    assert summarise(PARAMS, old)["idle_share_of_slots"] == {"calibrate": None, "evaluate": None}
    slots = {"slots": 40, "slots_used": 30, "idle_share_of_slots": 0.25}
    new = {name: {**found, **slots} for name, found in old.calibration.items()}
    new["judge"] |= {"slots": 60, "slots_used": 60}
    half = {**old.evaluation, "prob": {**old.evaluation["prob"], **slots}}
    found = replace(old, calibration=new, evaluation=half)
    assert summarise(PARAMS, found)["idle_share_of_slots"] == {"calibrate": pytest.approx(0.1), "evaluate": None}


def test_speeds_are_those_to_the_best_of_transformers(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    blocks = {"transformers_assisted": 0, "transformers_lookup": 8}
    failed = {"transformers_static": "RuntimeError: no"}
    assert summary["timed"] == {"n": 2, "blocks": blocks, "chosen_on": 16, "failed": failed, "machine": None}
    assert (
        "Speeds are those of 2 test prompts; assisted generation with its defaults, prompt lookup at K = 8, as 16 "
        "development prompts chose." in tables.caption(summary)
    )
    judge = summary["methods"]["judge"]["speed"]
    assert judge["vs_lookup"]["mean"] == 2.5 and "vs_static" not in judge
    assert judge["per_token"] == judge["vs_plain"]  # all answers have five tokens here
    shown = tables.markdown(summary)
    assert (
        "speed per token to plain" in shown
        and "speed to prompt lookup" in shown
        and tables.SHORT["vs static"] not in shown
    )
    for method in summary["methods"].values():
        method["speed"]["vs_static"] = judge["vs_plain"]
    assert tables.SHORT["vs static"] in tables.markdown(summary)


def test_answers_cut_at_the_limit_are_shown(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    del summary["timed"]
    assert tables.caption(summary).endswith(" %. Test answers cut at the limit: judge 2.")
    for method in summary["methods"].values():
        del method["cut"]
    assert tables.caption(summary).endswith(" %.")


def test_adversarial_answers_stand_beside_every_line_where_somebody_looked(folder):
    title = tables.SHORT["adversarial"]
    assert title not in tables.markdown(summarise(PARAMS, read_results(PARAMS)))
    counts = {"n": 40, "differing": 10, "opened": 1, "capped": 2, "tokens": 110, "strict_tokens": 100, "by_kind": {}}
    write_json("reports/adversarial.json", {"methods": dict.fromkeys(("exact", "prob", "judge"), counts)})
    summary = summarise(PARAMS, read_results(PARAMS))
    assert "by_kind" not in summary["methods"]["judge"]["adversarial"]
    assert tables.markdown(summary).count("25.0 %, 2.5 %, 1.10, 5.0 %") == 3 and title in tables.markdown(summary)
    assert "<td>25.0 %, 2.5 %, 1.10, 5.0 %</td>" in tables.html(summary)


def test_the_large_table_shows_what_the_core_methods_did_with_adversarial_prompts(folder):
    table = replace(PARAMS, methods={**PARAMS.methods, "prob": replace(PARAMS.method("prob"), extra=True)})
    for name in ("benchmark.json", "calibration/free/prob.json", "evaluation/prob"):
        (table.reports / name).parent.mkdir(parents=True, exist_ok=True)
        Path("reports", name).rename(table.reports / name)
    write_json("reports/adversarial.json", {"methods": {"judge": {"n": 40}}})
    assert read_results(table).adversarial == {"methods": {"judge": {"n": 40}}}


def test_frontier_holds_every_setting(folder):
    rows = list(csv.DictReader(io.StringIO(as_csv(frontier(read_results(PARAMS))))))
    assert [(row["method"], row["split"], row["certified_budgets"]) for row in rows] == [
        ("prob", "development", ""),
        ("prob", "calibration", ""),
        ("judge", "development", ""),
        ("judge", "calibration", "0.1"),
    ]
    assert rows[0]["loss"] == "0.015"  # the mean, which scores between 0 and 1 do not share with the counts


def test_a_setting_in_front_of_the_kept_one_is_certified_as_well(folder):
    path = Path("reports/calibration/learned/judge.json")
    found = read_json(path)
    (kept,) = found["settings"]
    settings = [{**kept, "knob": 0.1}, kept, {**kept, "knob": 0.3}]
    write_json(path, {**found, "settings": settings})
    rows = [row for row in frontier(read_results(PARAMS)) if (row["method"], row["split"]) == ("judge", "calibration")]
    assert [row["certified_budgets"] for row in rows] == [["0.1"], ["0.1"], []]


def test_methods_on_different_prompts_are_refused(folder):
    write_json_lines("reports/evaluation/judge/samples.jsonl", [{"id": "test-9", "correct": 1}])
    with pytest.raises(UserError, match="cannot be paired"):
        summarise(PARAMS, read_results(PARAMS))


def test_a_contender_that_was_not_timed_is_named(folder):
    write_json("reports/benchmark.json", {"methods": {}, "baselines": {}})
    with pytest.raises(UserError, match="no times of 'plain'"):
        summarise(PARAMS, read_results(PARAMS))


TRACE = {
    "id": "test-0",
    "context": "How many <b>?",
    "method": "judge",
    "knob": 0.2,
    "loose": {
        "score": 1,
        "mean_accepted_length": 5.0,
        "tokens": [
            {"text": "in ", "reason": "strict", "kept": 0.99, "probability": 0.9},
            {"text": "red", "reason": "loose", "kept": 0.97, "probability": 0.01},
        ],
    },
    "strict": {
        "score": 1,
        "mean_accepted_length": 3.0,
        "tokens": [{"text": "blue", "reason": "own", "kept": None, "probability": 0.8}],
    },
}


def test_the_whole_stage_twice_gives_equal_bytes(folder, monkeypatch):
    """Page and figures carry no date, load nothing from elsewhere, and show the trace escaped."""
    monkeypatch.setattr(report, "read_params", lambda: PARAMS)
    monkeypatch.setattr(report, "track", lambda *_: None)
    write_json("reports/trace.json", TRACE)
    report.main()
    files = [
        "summary.json",
        "frontier.csv",
        "index.html",
        *(f"figures/{f.name}" for f in Path("reports/figures").iterdir()),
    ]
    first = {name: Path("reports", name).read_bytes() for name in files}
    assert len(files) == 7
    report.main()
    assert first == {name: Path("reports", name).read_bytes() for name in files}
    html = first["index.html"].decode()
    assert "://" not in html
    assert 'aria-label="red: loose, gate 0.970, target 0.010"' in html and '<mark data-difference="1">' in html
    assert "How many &lt;b&gt;?" in html and html.count("data:image/png") == 4


def shown(**more):
    summary = summarise(PARAMS, read_results(PARAMS))
    content = {"machine": None, "trace": None, "judgements": None, "table": "", "figures": {}, "described": {}, **more}
    content.setdefault("provenance", {})
    return page("report", summary=summary, **content)


def test_the_page_says_when_there_is_no_trace(folder):
    assert "No loose method was certified" in shown()


def test_the_page_of_the_large_table_shows_who_is_right(folder):
    one = {"accepted": 3, "harmful_accepted": 1, "precision": 0.75, "recall": None}
    html = shown(judgements={"mismatches": 5, "harmless": 4, "methods": {"<fly>": one}})
    assert "<td>&lt;fly&gt;</td><td>3</td><td>1</td><td>75.0</td><td>–</td>" in html and "One answer" not in html


def test_every_method_becomes_a_run(folder, monkeypatch):
    """Without MLflow the record is a file; its lines carry the numbers."""
    monkeypatch.setattr("pipeline.tracking.importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("DVC_ROOT", str(folder))
    results = read_results(PARAMS)
    report.track(PARAMS, summarise(PARAMS, results), results)
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["exact", "prob", "judge", "comparison"]
    assert lines[2]["metrics"]["speed.vs_plain.mean"] == 2.0
    common = lines[3]
    assert common["params"]["task"] == PARAMS.task and common["data"][0]["purpose"] == "test"
    for line in lines[:3]:  # what all methods share is said once
        assert not line["params"].keys() & common["params"].keys()
        assert not line["metrics"].keys() & common["metrics"].keys()


def test_capped_answers_and_lengths_stand_beside_every_certified_line(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    assert summary["methods"]["judge"]["certificates"]["0.1"] == {
        "certified": True, "knob": 0.2, "bound": 0.04, "n": 100, "losses": 3, "gains": 1, "confidence": 0.95, **LENGTHS
    }  # fmt: skip
    line = dict(zip(tables.HEADER, tables.rows(summary)[2], strict=True))
    assert (line["capped"], line["tokens"]) == ("2.0 (1.0)", "41.5 (40.0)")
    text = tables.markdown(summary)
    assert "| capped (strict), % | tokens (strict) |" in text and "| 2.0 (1.0) | 41.5 (40.0) |" in text
    del summary["methods"]["judge"]["certificates"], summary["methods"]["prob"]["certificates"]
    assert "capped" not in tables.markdown(summary)
