"""The page about retrieval shows what docs/results holds, and publishing leaves the rest of it alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gistgate.files import read_json, write_json
from pipeline.report.markers import part, split
from pipeline.report.publish import PART
from pipeline.studies.retrieval import publish
from pipeline.studies.retrieval.publish import PAGE, RESULTS, main
from pipeline.studies.retrieval.tables import content

ROOT = Path(__file__).parents[4]
RATIO = {"mean": 2.0, "low": 1.5, "high": 2.5}
BEHIND = {"n": 1000, "losses": 15, "gains": 3, "confidence": 0.95}
"""What a bound is computed from."""
METHODS = """
methods:
  lossless:
    lookup-exact: {rule: exact, drafter: lookup}
    corpus-exact: {rule: exact, drafter: corpus}
    recycle-exact: {rule: exact, drafter: recycle}
  free:
    sen-sense: {rule: sense, drafter: sen, knob: gamma, grid: [0.2]}
    corpus-sense: {rule: sense, drafter: corpus, knob: gamma, grid: [0.2]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder after `make retrieval` without Token Recycling: one certified method, and one that runs strictly."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", str(PAGE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "pipeline/studies/retrieval").mkdir(parents=True)
    (tmp_path / "pipeline/studies/retrieval/params.yaml").write_text(METHODS)
    reports, times = tmp_path / "reports/retrieval", {"block": 8, "seconds": [[1.0, 1.0], [2.0, 2.0]]}
    names = ("lookup-exact", "corpus-exact", "sen-sense", "corpus-sense")
    references = ("plain", "lookup-exact", "corpus-exact")
    speed = {
        name: {
            "tokens_per_second": 10.0,
            "mean_accepted_length": 3.5,
            **{f"vs_{key}": RATIO for key in references if key != name},
        }
        for name in ("plain", *names)
    }
    write_json(
        reports / "benchmark.json",
        {
            "baselines": {"plain": times},
            "methods": dict.fromkeys(names, times),
            "ratios": speed,
            "machine": {"threads": 1},
        },
    )
    evaluated, budgets = {}, {}
    for name, is_certified in (("sen-sense", True), ("corpus-sense", False)):
        evaluated[name] = {
            "budget": 0.03,
            "certified": is_certified,
            "settings": {"gamma": 0.2} if is_certified else {},
            "accuracy_difference": {"mean": -0.01, "low": -0.02, "high": 0.0},
        }
        budgets["0.03"] = {**BEHIND, "bound": 0.0234, "refusal": None if is_certified else "no setting passes"}
        write_json(reports / f"calibration/free/{name}.json", {"budgets": budgets})
    write_json(reports / "evaluation.json", {"n": 1000, "methods": evaluated})
    write_json(
        reports / "datastore.json",
        {"keys": 23254, "key_size": 64, "prompts": 320, "bytes": 3_137_615, "keys_per_second": 1402.6},
    )
    monkeypatch.setattr(publish, "check_finished", lambda _graph: None)  # neither DVC nor Git knows this folder
    monkeypatch.setattr(publish, "publish_looks", lambda _folder, _where: 0)  # tests of its own
    monkeypatch.setattr(publish, "origin", lambda modules: {"code": {"modules": list(modules), "commit": "abc"}})
    return tmp_path


def test_publishing_renews_the_table_and_nothing_else(folder: Path):
    before = split((ROOT / PAGE).read_text(), PART)
    main()
    page = (folder / PAGE).read_text()
    assert split(page, PART) == before and part(page, PART) == content(read_json(folder / RESULTS / "summary.json"))
    lines = [line for line in part(page, PART).splitlines() if line.startswith("|")]
    ratio, change = "2.00 [1.50, 2.50]", "-1.0 [-2.0, +0.0]"
    assert lines[2:] == [
        f"| lookup + exact | 8 | {ratio} | 1 | {ratio} | 3.50 | – | – | – |",
        f"| corpus + exact | 8 | {ratio} | {ratio} | 1 | 3.50 | – | – | – |",
        f"| **sen + sense** | 8 | {ratio} | {ratio} | {ratio} | 3.50 | gamma 0.2 | 2.34 | {change} |",
        f"| corpus + sense | 8 | {ratio} | {ratio} | {ratio} | 3.50 | nothing, runs strictly | – | {change} |",
    ]
    assert "speed over 2 test prompts, each decoded 2 times" in page
    assert "23254 keys of 64 dimensions from 320 training prompts, 3.1 MB, built at 1403 keys per second" in page


def test_a_published_certificate_holds_what_its_bound_is_computed_from(folder: Path):
    main()
    methods = {method["name"]: method for method in read_json(folder / RESULTS / "summary.json")["methods"]}
    for name in ("sen-sense", "corpus-sense"):
        assert {key: methods[name]["certificate"].get(key) for key in BEHIND} == BEHIND


def test_the_html_page_shows_the_same_lines(folder: Path):
    main()
    html = (folder / "reports/retrieval/index.html").read_text()
    assert html.count("<tr>") == 5 and "<td>sen + sense</td><td>8</td>" in html and "23254 keys" in html


@pytest.mark.skipif(not (ROOT / RESULTS / "summary.json").exists(), reason="retrieval is not published")
def test_the_page_shows_the_published_results():
    assert part((ROOT / PAGE).read_text(), PART) == content(read_json(ROOT / RESULTS / "summary.json"))
