"""From made-up results of three methods to summary, frontier, figures, page and README: numbers to
check by head.
"""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from gistgate.core.files import read_json, write_json, write_json_lines
from gistgate.core.utils import UserError
from pipeline.paths import calibration_file
from pipeline.report import tables
from pipeline.report.summary import as_csv, frontier, read_results, summarise
from pipeline.stages import report
from tests.pipeline.report.made_up import LENGTHS, PARAMS, folder

__all__ = ["folder"]


def found():
    return summarise(PARAMS, read_results(PARAMS))


def test_the_summary_has_the_promised_numbers(folder):
    summary = found()
    assert summary["plain"] == {"accuracy": 0.75}
    assert summary["heads"] == {"logistic": {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None}}
    judge = summary["methods"]["judge"]
    assert judge["accuracy_difference"]["mean"] == -0.25
    assert (
        judge["speed"]["vs_plain"]["mean"] == 2.0 and judge["speed"]["vs_assisted"]["mean"] == 3.0
    )
    assert judge["speed"]["vs_strict"] == {"mean": 1.5, "low": 1.5, "high": 1.5}
    assert judge["speed"]["vs_lookup"]["mean"] == 2.5 and "vs_static" not in judge["speed"]
    assert (
        judge["speed"]["per_token"] == judge["speed"]["vs_plain"]
    )  # all answers have five tokens here
    assert judge["certified_bound"] == 0.04 and judge["target_forwards"] == 10 and judge["n"] == 4
    assert judge["certificates"]["0.1"] == {
        "certified": True,
        "knob": 0.2,
        "bound": 0.04,
        "n": 100,
        "losses": 3,
        "gains": 1,
        "confidence": 0.95,
        **LENGTHS,
    }
    assert summary["methods"]["prob"]["certified_bound"] is None
    assert summary["methods"]["exact"]["certified_bound"] == 0.0


def test_a_refused_method_says_so_and_the_caption_tells_how_speeds_were_measured(folder):
    lines = {row[0]: dict(zip(tables.COLUMNS, row, strict=True)) for row in tables.rows(found())}
    assert {name: lines[name]["bound"] for name in PARAMS.methods} == {
        "exact": "0.0",
        "prob": "refused",
        "judge": "4.0",
    }
    assert (lines["plain"]["seconds"], lines["plain"]["vs strict"]) == ("1", "0.75 [0.75, 0.75]")
    assert lines["judge"]["per token vs strict"] == "1.50 [1.50, 1.50]"
    unmeasured = lines["transformers, static cache, compiled"]
    assert {lines["prob"]["vs plain"], unmeasured["seconds"]} == {tables.UNKNOWN}
    assert (lines["judge"]["capped"], lines["judge"]["tokens"]) == ("2.0 (1.0)", "41.5 (40.0)")
    assert (
        lines["prob"]["capped"] == "1.0 (1.0)"
    )  # those of strict decoding, which runs in its place
    text = tables.markdown(found())
    assert (
        "Test answers cut at the limit: judge 2. Speeds are those of 2 test prompts; assisted"
        " generation with " in text
    )
    assert tables.COLUMNS["vs static"] not in text  # nobody measured it


@pytest.mark.parametrize(
    ("rows", "block", "is_timed"), [(1, 8, True), (32, 8, False), (1, 4, False)]
)
def test_a_speed_needs_the_certificate_of_the_same_decoder(folder, rows, block, is_timed):
    """In bfloat16 answers depend on the rows decoded together, on the engine and on K."""
    path = calibration_file("judge")
    report = read_json(path)
    scope = {"target": {"dtype": "bfloat16"}, "batching": {"rows": rows}, "engine": "eager"}
    report["proof"]["scope"] = scope | {"block": block}
    write_json(path, report)
    assert bool(found()["methods"]["judge"]["speed"]) is is_timed


def test_adversarial_answers_stand_beside_every_line_where_somebody_looked(folder):
    title = tables.COLUMNS["adversarial"]
    assert title not in tables.markdown(found())
    counts = {
        "n": 40,
        "differing": 10,
        "opened": 1,
        "capped": 2,
        "tokens": 110,
        "strict_tokens": 100,
        "by_kind": {},
    }
    write_json("reports/adversarial.json", {"methods": dict.fromkeys(PARAMS.methods, counts)})
    summary = found()
    assert "by_kind" not in summary["methods"]["judge"]["adversarial"]
    assert tables.markdown(summary).count(
        "25.0 %, 2.5 %, 1.10, 5.0 %"
    ) == 3 and title in tables.markdown(summary)
    told = [row[-1] for row in tables.rows(summary) if row[0] in PARAMS.methods]
    assert told == ["25.0 %, 2.5 %, 1.10, 5.0 %"] * 3


def test_the_frontier_holds_every_setting_with_the_budgets_it_is_certified_for(folder):
    rows = list(csv.DictReader(io.StringIO(as_csv(frontier(read_results(PARAMS))))))
    found = [(row["method"], row["split"], row["certified_budgets"]) for row in rows]
    strict = [
        (name, split, "") for name in ("prob", "judge") for split in ("development", "calibration")
    ]
    assert found == [*strict[:3], ("judge", "calibration", "0.1")]
    assert (
        rows[0]["loss"] == "0.015"
    )  # the mean, which scores between 0 and 1 do not share with the counts

    # A setting in front of the kept one is certified as well.
    path = calibration_file("judge")
    told = read_json(path)
    (kept,) = told["settings"]
    write_json(path, {**told, "settings": [{**kept, "knob": 0.1}, kept, {**kept, "knob": 0.3}]})
    rows = [
        row
        for row in frontier(read_results(PARAMS))
        if (row["method"], row["split"]) == ("judge", "calibration")
    ]
    assert [row["certified_budgets"] for row in rows] == [["0.1"], ["0.1"], []]


def test_what_cannot_be_compared_is_refused(folder):
    with pytest.raises(UserError, match="lacks 'exact'"):
        read_results(replace(PARAMS, methods={}))


def test_the_whole_stage_twice_gives_equal_bytes(folder, monkeypatch):
    """Page and figures carry no date and load nothing from elsewhere."""
    monkeypatch.setattr(report, "read_params", lambda: PARAMS)
    monkeypatch.setattr(report, "track", lambda *_: None)
    report.main()
    figures = sorted(path.name for path in report.FIGURES.iterdir())
    files = ["summary.json", "frontier.csv", "index.html", *(f"figures/{name}" for name in figures)]
    first = {name: Path("reports", name).read_bytes() for name in files}
    assert figures == ["accepted_length.png", "frontier.png", "reliability.png", "speed.png"]
    report.main()
    assert first == {name: Path("reports", name).read_bytes() for name in files}
    html = first["index.html"].decode()
    assert "://" not in html and html.count("data:image/png") == 4 and "<td>refused</td>" in html


def test_every_method_becomes_a_run(folder, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(folder))
    report.FIGURES.mkdir()
    write_json_lines("data/prompts/test.jsonl", [{"id": "test-0"}])
    report.track(PARAMS, found(), read_results(PARAMS))
    import mlflow

    every = mlflow.search_runs(search_all_experiments=True, output_format="list")
    runs = {run.info.run_name: run.data for run in every}
    assert runs.keys() == {"exact", "prob", "judge", "comparison"}
    assert (
        runs["judge"].metrics["speed.vs_plain.mean"] == 2.0
        and runs["judge"].params["rule"] == "prob-ratio"
    )
    common = runs["comparison"]
    assert common.params["task"] == PARAMS.task
