"""Which setting and K a benchmark takes from a finished run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import workload as module
from benchmarks.workload import PROOF, Workload
from gistgate.errors import UserError
from gistgate.files import write_json
from pipeline.params import parse_params
from pipeline.studies.speed.params import FILE

PARAMS = {
    "methods": {"free": {name: {"rule": name, "knob": "r", "grid": [0.5, 0.1]} for name in ("prob", "prob-ratio")}},
}
BLOCKS = {"blocks": {"prob": 3, "prob-ratio": 4}}


def calibrated(name: str, folder: str, block: int, knob: float | None) -> None:
    """A calibration file of a method; without a knob nothing was certified. K stands for the lost prompts."""
    numbers = {"confidence": 0.95, "n": 100, "losses": block, "gains": 0, "bound": 0.02, "bound_kind": "exact"}
    found = {"certified": knob is not None, "knob": knob, "fixed": {}, **numbers}
    write_json(Path(folder) / "calibration/free" / f"{name}.json", {"block": block, "budgets": {"0.03": found}})


@pytest.fixture
def workload(tmp_path, monkeypatch) -> Workload:
    """Both methods are certified at the common K."""
    monkeypatch.chdir(tmp_path)
    write_json(FILE, BLOCKS)
    calibrated("prob", "reports", 8, 0.5)
    calibrated("prob-ratio", "reports", 8, 0.5)
    return Workload(parse_params(PARAMS), SimpleNamespace(), [])


def test_a_method_runs_at_its_own_k_where_it_is_certified_there(workload):
    calibrated("prob", "reports/speed", 3, 0.1)
    calibrated("prob-ratio", "reports/speed", 4, None)
    own, common = workload.own, workload.points
    assert (own["prob"].block, own["prob"].knob) == (3, 0.1)
    assert (common["prob"].block, common["prob"].knob) == (8, 0.5)
    assert own["prob-ratio"] == common["prob-ratio"]


def test_the_numbers_of_a_certificate_are_those_of_the_k_that_runs(workload):
    calibrated("prob", "reports/speed", 3, 0.1)
    calibrated("prob-ratio", "reports/speed", 4, None)
    assert {name: workload.certificate(name)["losses"] for name in workload.own} == {"prob": 3, "prob-ratio": 8}
    assert set(workload.certificate("prob")) == set(PROOF)


def test_without_such_certificates_the_common_k_stays(workload):
    assert workload.own == workload.points


def test_a_certificate_at_another_k_than_asked_for_is_stale(workload):
    calibrated("prob", "reports/speed", 5, 0.1)
    with pytest.raises(UserError, match=r"K = 5, but pipeline/studies/speed/params.yaml says 3. Run `make speed`"):
        _ = workload.own


def test_a_run_without_a_learned_method_says_so_once(workload, capsys):
    assert workload.headline == [] and workload.headline == []
    assert capsys.readouterr().out.count("No learned method is certified here at the common K") == 1


@pytest.mark.parametrize(
    ("skip", "said"), [(3, "There are 3 test prompts, so that none is left. Lower --skip 3"), (0, "")]
)
def test_skipping_all_prompts_is_refused_before_a_model_is_loaded(skip, said, workload, monkeypatch):
    write_json(Path("data/prompts/test.jsonl"), {})
    monkeypatch.setattr(module, "read_params", lambda: None)
    monkeypatch.setattr(module, "table_params", lambda params: params)
    monkeypatch.setattr(module, "read_prompts", lambda _split: [{"ids": [place]} for place in range(3)])
    monkeypatch.setattr(module, "load_pair", lambda _params: pytest.fail("loaded") if skip else None)
    if skip:
        with pytest.raises(UserError, match=said):
            Workload.load(2, skip=skip)
    else:
        assert Workload.load(2).ids == [[0], [1]] and Workload.load(0).ids == []
