"""From fake results of three methods to summary, frontier, figures, page, README: numbers that the head can check."""

import csv
import io
import json
from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.files import fingerprint, write_json, write_json_lines
from pipeline.params import parse_params
from pipeline.report import publish, tables
from pipeline.report.markers import begin, end, part
from pipeline.report.page import page
from pipeline.report.publish import PART
from pipeline.report.results import read_results
from pipeline.report.summary import as_csv, frontier, summarise
from pipeline.stages import report

PARAMS = parse_params(
    {
        "headline_budget": 0.1,
        "train": {"heads": ["logistic"]},
        "methods": {
            "free": {"exact": {"rule": "exact"}, "prob": {"rule": "prob", "knob": "r", "grid": [0.5, 0.1]}},
            "learned": {"judge": {"rule": "autojudge", "head": "logistic", "knob": "risk", "grid": [0.05, 0.2]}},
        },
    }
)
CORRECT = {"plain": [1, 1, 1, 0], "exact": [1, 1, 1, 0], "prob": [1, 1, 1, 0], "judge": [1, 0, 1, 0]}
SECONDS = {"plain": 4.0, "strict": 3.0, "transformers_generate": 5.0, "transformers_assisted": 6.0}
SECONDS["transformers_lookup"] = 5.0
STATISTICS = {"forwards": 10, "histogram": {"0": 1, "8": 3}}
SETTING = {"n": 100, "losses": 3, "gains": 1, "accuracy": 0.9, "mean_accepted_length": 5.0, "loose_per_100": 2.0}

LENGTHS = {"capped": 0.02, "strict_capped": 0.01, "mean_tokens": 41.5, "strict_mean_tokens": 40.0}


def evaluation(name):
    summary = {
        "method": name,
        "block": 8,
        "knob": 0.2 if name == "judge" else None,
        "n": 4,
        "accuracy": sum(CORRECT[name]) / 4,
        "cut": 2 if name == "judge" else 0,
        "mean_accepted_length": 6.0,
        "loose_per_100": 7.0,
        "statistics": STATISTICS,
    }
    return summary, [{"id": f"test-{i}", "correct": c} for i, c in enumerate(CORRECT[name])]


def calibration(name, knob, certified):
    verdict = {"certified": certified, "knob": knob if certified else None, "bound": 0.04 if certified else 0.2}
    verdict |= {"n": 100, "losses": 3, "gains": 1, "confidence": 0.95, **LENGTHS}
    return {
        "method": name,
        "rule": PARAMS.methods[name].rule,
        "budgets": {"0.1": verdict},
        "settings": [{"knob": knob, "fixed": {}, **SETTING}],
        "development": [{"knob": knob, "fixed": {}, **SETTING}],
    }


def timing(seconds):
    return {"block": 8, "seconds": [[seconds / 4, seconds / 4]] * 2, "tokens": [5, 5], "target_forwards": [2, 2]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory in which every stage in front of `report` has run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "unused")
    for name in CORRECT:
        summary, samples = evaluation(name)
        write_json(f"reports/evaluation/{name}/summary.json", summary)
        write_json_lines(f"reports/evaluation/{name}/samples.jsonl", samples)
    write_json("reports/calibration/free/prob.json", calibration("prob", 0.1, False))
    write_json("reports/calibration/learned/judge.json", calibration("judge", 0.2, True))
    methods = {"exact": timing(3.0), "prob": timing(3.0), "judge": timing(2.0)}
    baselines = {name: timing(seconds) for name, seconds in SECONDS.items()}
    baselines["transformers_assisted"]["block"] = 0
    about = {"chosen_on": 16, "failed": {"transformers_static": "RuntimeError: no"}}
    write_json("reports/benchmark.json", {"methods": methods, "baselines": baselines, **about})
    write_json("models/heads/logistic/metrics.json", {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None, "n": 3})
    bins = [{"predicted": 0.2, "observed": 0.3, "n": 2}, {"predicted": 0.8, "observed": 0.9, "n": 2}]
    write_json("models/heads/logistic/curves.json", {"reliability": bins})
    return tmp_path


def test_summary_has_the_promised_schema_and_numbers(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    assert set(summary) == {"pair", "task", "seed", "headline_budget", "looks", "plain", "timed", "methods", "heads"}
    judge = summary["methods"]["judge"]
    assert set(judge) == {
        "rule",
        "drafter",
        "block",
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
    assert summary["heads"] == {"logistic": {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None}}


def test_speeds_are_those_to_the_best_of_transformers(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    blocks = {"transformers_assisted": 0, "transformers_lookup": 8}
    failed = {"transformers_static": "RuntimeError: no"}
    assert summary["timed"] == {"n": 2, "blocks": blocks, "chosen_on": 16, "failed": failed}
    assert (
        "Speeds are those of 2 test prompts; assisted generation with its defaults, prompt lookup at K = 8, as 16 "
        "development prompts chose." in tables.caption(summary)
    )
    judge = summary["methods"]["judge"]["speed"]
    assert judge["vs_lookup"]["mean"] == 2.5 and "vs_static" not in judge
    shown = tables.markdown(summary)
    assert "speed to prompt lookup" in shown and tables.SHORT["vs static"] not in shown
    for method in summary["methods"].values():
        method["speed"]["vs_static"] = judge["vs_plain"]
    assert tables.SHORT["vs static"] in tables.markdown(summary)


def test_answers_cut_at_the_limit_are_shown(folder):
    summary = summarise(PARAMS, read_results(PARAMS))
    del summary["timed"]
    assert tables.caption(summary).endswith(" %. Answers cut at the limit: judge 2.")
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


def test_frontier_holds_every_setting(folder):
    rows = list(csv.DictReader(io.StringIO(as_csv(frontier(read_results(PARAMS))))))
    assert [(row["method"], row["split"], row["certified_budgets"]) for row in rows] == [
        ("prob", "development", ""),
        ("prob", "calibration", ""),
        ("judge", "development", ""),
        ("judge", "calibration", "0.1"),
    ]
    assert rows[0]["loss"] == "0.02"


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
    monkeypatch.setattr("pipeline.common.tracking.importlib.util.find_spec", lambda name: None)
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
    assert "`judge` leads by a factor of 1.00 in length and of 1.50 in time" in about
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


def test_publish_without_markers_changes_nothing(folder):
    write_json("reports/summary.json", summarise(PARAMS, read_results(PARAMS)))
    Path("README.md").write_text("# Top\n")
    with pytest.raises(UserError, match="The page lacks the lines"):
        publish.publish(*PLACES, CODE)
    assert not Path("docs").exists()


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
