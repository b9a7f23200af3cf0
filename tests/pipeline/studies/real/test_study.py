"""The study of a pretrained pair: its file reads, folders stand in for hub ids, K is measured once, results travel."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json, write_text
from pipeline.common.paths import PAIR_REPORT, PAIRS
from pipeline.common.reading import read
from pipeline.common.yaml_file import read_yaml
from pipeline.labels.cost import Cost
from pipeline.pairs.source import ModelSource, read_pair
from pipeline.params import parse_params
from pipeline.params.drafting import check_probabilities, drafter_of
from pipeline.report.markers import begin, end, part
from pipeline.smoke import ROOT, merged
from pipeline.studies.real import publish, study
from pipeline.studies.real.params import FILE, RealParams, read_study
from pipeline.studies.table.params import read_table_params, table_params
from tests.certificates.test_certificate import gate_with, proof_of

REAL = read(RealParams, ROOT / FILE)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Folders where the pair's models would lie."""
    for name in REAL.folders.values():
        (tmp_path / "models" / name).mkdir(parents=True)
    return tmp_path / "models"


def test_the_studys_changes_make_parameters_that_read() -> None:
    params = parse_params(merged(read_yaml(ROOT / "params.yaml"), REAL.changes))
    assert (params.prompts.train, params.prompts.development) == (80, 60)
    assert (params.prompts.calibration, params.prompts.test) == (200, 200)
    assert params.prompting.chat_template and "End with #### and" in (params.prompting.system or "")
    assert set(params.methods) == {"exact", "lookup", "prob-ratio", "fly", "ensemble", "typical", "autojudge"}


@pytest.mark.parametrize(
    "name, task, folders",
    [("code", "python-functions", {"target", "draft"}), ("smollm2", "gsm8k-sentence", {"target"})],
)
def test_other_studies_change_the_first(
    name: str, task: str, folders: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file leaves out stands in the file that it is like; the parameters suit its pair."""
    monkeypatch.chdir(ROOT)
    found = read_study(ROOT / f"pipeline/studies/real/{name}.yaml")
    params = parse_params(merged(read_yaml(ROOT / "params.yaml"), found.changes))
    assert (params.task, params.allow_code, set(found.folders)) == (task, name == "code", folders)
    usual = parse_params(merged(read_yaml(ROOT / "params.yaml"), REAL.changes)).prompts
    assert params.prompts == (replace(usual, draw=6) if name == "smollm2" else usual)
    check_probabilities(params.methods, params.train, drafter_of(params.pair))
    assert set(found.folders) == {"target", "draft"} or drafter_of(params.pair) == "suffix"


def test_a_folder_may_lie_in_the_home_folder(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(models.parent))
    assert study.existing(Path("~/models")) == models.resolve()
    with pytest.raises(UserError, match="There is no folder ~/none"):
        study.existing(Path("~/none"))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would run in the copy, in order; the measurement proposes K = 3."""
    ran: list[Any] = []

    def propose(command: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ran.append("propose")
        write_json(cwd / study.PROPOSAL, {"decoding": {"block": 3, "strict_block": 3}})
        return subprocess.CompletedProcess(command, 0)

    def repro(place: Path, *words: str) -> str:
        block = parse_params(read_yaml(place / "params.yaml")).decoding.block
        ran.append((*words, block))
        return ""

    monkeypatch.setattr(study, "dvc", repro)
    monkeypatch.setattr(
        study, "copy_project", lambda place, changes: copy(place) if changes == () else pytest.fail("tiny sizes")
    )
    monkeypatch.setattr(study.subprocess, "run", propose)
    return ran


def copy(place: Path) -> None:
    """Of the project no more than the pair's file."""
    name = f"{REAL.changes['pair']}.yaml"
    write_text(place / PAIRS / name, (ROOT / PAIRS / name).read_text())


def test_folders_replace_hub_ids_and_k_is_measured_once(tmp_path: Path, models: Path, commands: list[Any]) -> None:
    place, default = tmp_path / "copy", parse_params(read_yaml(ROOT / "params.yaml")).decoding.block
    for _ in range(2):
        study.main(models=models, data=tmp_path, params=ROOT / FILE, folder=place)
    assert commands == [
        ("repro", "prompts", default),
        "propose",
        ("repro", *study.WITH_TABLE, 3),
        ("repro", "prompts", 3),
        ("repro", *study.WITH_TABLE, 3),
    ]
    source = read_pair(REAL.changes["pair"], place / PAIRS)
    assert source.target.model == "models/given/target" and source.draft.dtype == "bfloat16"
    assert (place / source.target.model).resolve() == models / "qwen2.5-coder-1.5b"
    assert source.names == {
        "target": "Qwen/Qwen2.5-Coder-1.5B-Instruct", "tokenizer": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
        "draft": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    }  # fmt: skip
    assert parse_params(read_yaml(place / "params.yaml")).task_data == "data/given"
    assert (place / "data/given").resolve() == tmp_path


def test_changed_documents_are_seen_by_whoever_reads_the_task(tmp_path: Path, commands: list[Any]) -> None:
    place, data = tmp_path / "copy", tmp_path / "documents"
    write_text(data / "train.jsonl", "{}\n")

    def tasks() -> str:
        study.main(data=data, params=ROOT / FILE, folder=place)
        return fingerprint(place / "data/tasks")

    before = tasks()
    assert tasks() == before
    write_text(data / "train.jsonl", "{}\n{}\n")
    assert tasks() != before


def test_k_is_measured_again_for_another_pair(tmp_path: Path, commands: list[Any]) -> None:
    """A study in the folder of another one does not decode with that one's K."""
    place, other = tmp_path / "copy", tmp_path / "other.yaml"
    changes = {**REAL.changes, "decoding": {**REAL.changes["decoding"], "batch_size": 7}}
    write_text(other, yaml.safe_dump({"changes": {**changes, "task": "gsm8k"}, "propose": {}}))
    for params in (ROOT / FILE, other, other):
        study.main(params=params, folder=place)
    default = parse_params(read_yaml(ROOT / "params.yaml")).decoding.block
    assert commands[3:] == [
        ("repro", "prompts", default), "propose", ("repro", 3),
        ("repro", "prompts", 3), ("repro", 3),
    ]  # fmt: skip
    assert parse_params(read_yaml(place / "params.yaml")).decoding.batch_size == 7


def test_null_takes_a_key_away_that_the_first_file_does_not_name(tmp_path: Path) -> None:
    write_text(tmp_path / "first.yaml", "changes: {pair: a, methods: {free: {prob: null}}}\nfolders: {draft: x}\n")
    changes = "changes: {methods: {free: {fly: null}}, pair: b, task: t}"
    write_text(tmp_path / "second.yaml", f"like: first.yaml\n{changes}\nfolders: {{draft: null}}\n")
    found = read_study(tmp_path / "second.yaml")
    methods = {"free": {"prob": None, "fly": None}}
    assert found.changes == {"pair": "b", "task": "t", "methods": methods} and not found.folders
    assert merged({"methods": {"free": {"prob": 1, "fly": 2, "mars": 3}}}, found.changes)["methods"] == {
        "free": {"mars": 3}
    }


def test_the_large_table_compares_the_rules_that_the_study_names(tmp_path: Path, monkeypatch: Any) -> None:
    study.prepare_table(tmp_path, REAL.rules)
    monkeypatch.chdir(tmp_path)
    core = parse_params(merged(read_yaml(ROOT / "params.yaml"), REAL.changes))
    assert set(table_params(core).methods) == {*core.methods, "csd"} and not read_table_params().wants_judge
    with pytest.raises(UserError, match="no rule 'cds' to compare. Did you mean 'csd'"):
        study.prepare_table(tmp_path, ("cds",))


def test_without_folders_the_hub_ids_stay(tmp_path: Path, commands: list[Any]) -> None:
    study.main(params=ROOT / FILE, folder=tmp_path / "copy", until="reference")
    source = read_pair(REAL.changes["pair"], tmp_path / "copy" / PAIRS)
    assert source.target.model == "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    assert commands[-1] == ("repro", "reference", 3)


def test_a_folder_of_the_pairs_file_is_no_name(tmp_path: Path) -> None:
    """Only what others can find replaces a folder's own name, and a name that is said stays."""
    place = {"model": "models/given/draft"}
    assert study.in_folder(ModelSource(str(tmp_path)), "draft", "x") == {**place, "name": "x"}
    assert study.in_folder(ModelSource(str(tmp_path), name="a/b"), "draft", "x") == {**place, "name": "a/b"}
    assert study.in_folder(ModelSource("c/d"), "draft", "x") == {**place, "name": "c/d"}


def test_a_missing_model_is_named(tmp_path: Path, models: Path) -> None:
    (models / "qwen2.5-coder-0.5b").rmdir()
    with pytest.raises(UserError, match=r"no model .*qwen2.5-coder-0.5b. Did you mean 'qwen2.5-coder-1.5b'"):
        study.local_folders(REAL, models)
    with pytest.raises(UserError, match="There is no folder"):
        study.existing(tmp_path / "none")


TIMES = {"baselines": {"plain": {"seconds": [[2.0]], "tokens": [9]}}, "methods": {}}
CODE = {"code": {"modules": ["pipeline.stages.report"], "fingerprint": "0" * 16, "commit": "0" * 12}}


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A finished copy beside pages with their comments: the reports are those of the embedded pair."""
    done = tmp_path / "copy"
    write_json(done / "reports/summary.json", read_json(ROOT / "docs/results/summary.json"))
    write_json(done / "reports/benchmark.json", TIMES)
    write_text(done / "reports/frontier.csv", "method\n")
    write_text(done / "reports/figures/one.png", "")
    write_json(done / "block.json", {"decoding": {"block": 3}})
    write_json(
        done / "reports/labels/collect-strict.json", Cost(12, 18, 360, seconds=60, slots=40, slots_used=30).as_json()
    )
    write_json(done / "reports/labels/collect-gated.json", Cost(seconds=60).as_json())
    write_text(done / PAIRS / "embedded.yaml", "target: {model: /x/big, name: a/big}\ndraft: {model: /x/small}\n")
    write_json(done / PAIR_REPORT, {"target": {"model": "/x/big"}, "draft": {"model": "/x/small"}, "tokens": 9})
    shutil.copytree(gate_folder(tmp_path), done / "models/export")
    write_text(done / "models/export/custom_generate/generate.py", "")
    for page, names in (("docs/real.md", [publish.PART]), ("README.md", [publish.SHORT, publish.LIST])):
        write_text(tmp_path / page, "# Page\n\n" + "".join(f"{begin(name)}\n{end(name)}\n" for name in names))
    return done


def gate_folder(place: Path) -> Path:
    """An exported gate with a certificate."""
    folder = place / "made"
    gate = gate_with()
    gate.save(folder, card="# Card")
    proof_of(gate).save(folder)
    return folder


def published(done: Path) -> None:
    publish.publish_all(done, done.parent / "results", CODE, done.parent, done.parent / "looks.json")


def test_results_and_gate_are_published(done: Path) -> None:
    published(done)
    summary, place = read_json(done / "reports/summary.json"), done.parent
    summary.pop("code")  # it is a published one, and names its own
    own = f"{summary['pair']}-{summary['task']}"
    found = read_json(place / "results" / own / "summary.json")
    assert set(found.pop("code").pop("files")) == {"frontier.csv", "one.png"} and found == summary
    assert read_json(place / "results" / own / "benchmark.json") == {**TIMES, **CODE}
    assert read_json(place / "results" / own / "block.json") == {"decoding": {"block": 3}}
    page = (place / "docs/real.md").read_text()
    assert f"### {own}" in page
    assert "| `collect-strict` | 12 | 720 | 1.5 | 30.0 | 25 |" in page and "collect-gated" not in page
    said = {"target": {"model": "a/big"}, "draft": {"model": "small"}, "tokens": 9, **CODE}
    assert read_json(place / "results" / own / PAIR_REPORT.name) == said
    gate = place / "models/gates" / own
    assert {path.name for path in gate.iterdir()} == set(publish.GATE_FILES)
    readme = (place / "README.md").read_text()
    assert f"| [{own}]" in readme and part(readme, publish.SHORT) == publish.short(place / "results")


def test_another_task_stands_beside_the_first(done: Path) -> None:
    published(done)
    write_json(done / "reports/summary.json", {**read_json(done / "reports/summary.json"), "task": "another"})
    published(done)
    headings = [line for line in (done.parent / "docs/real.md").read_text().splitlines() if line.startswith("### ")]
    assert headings == ["### embedded-another", "### embedded-wordproblems"]


def test_nothing_is_published_of_an_unfinished_study(done: Path) -> None:
    (done / "models/export/certificate.json").unlink()
    with pytest.raises(UserError, match="There is no .*certificate.json. Run the study to its end"):
        published(done)
    assert not (done.parent / "results").exists() and "###" not in (done.parent / "docs/real.md").read_text()


def test_a_look_without_a_record_is_refused(done: Path) -> None:
    write_json(done / "reports/calibration/free/prob.json", {"budgets": [0.05]})
    with pytest.raises(UserError, match="does not say which calibration prompts"):
        published(done)
    assert not (done.parent / "results").exists()


def test_no_look_is_entered_where_results_cannot_be_written(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entering(folder: Path, where: Path, ledger: Path) -> None:
        write_text(ledger, f"{folder.name} {where.name}")

    monkeypatch.setattr(publish, "publish_looks", entering)
    (done / "reports/frontier.csv").unlink()
    with pytest.raises((UserError, OSError)):
        published(done)
    assert not (done.parent / "looks.json").exists()
    write_text(done / "reports/frontier.csv", "method\n")
    published(done)
    assert (done.parent / "looks.json").read_text() == "calibration summary.json"
