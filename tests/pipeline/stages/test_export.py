"""The stage `export`: calibration and head become one folder, the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.gate import Gate, GateConfig
from gistgate.core.guards import DomainGuard, fit
from gistgate.core.identity import gate_hash, identify_model, identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.models.build import choose
from gistgate.models.options import DecodeOptions
from pipeline.stages import export
from tests.certificates.proofs import certificate, point
from tests.tiny import byte_tokenizer, tiny_pair

PARAMS = """
headline_budget: 0.03
train: {heads: [logistic, mlp], headline_head: logistic}
methods:
  free:
    fly: {rule: fly, knob: theta, grid: [1.0, 0.5]}
  learned:
    other: {rule: autojudge, head: mlp, knob: risk, grid: [0.1, 0.2]}
    judged: {rule: autojudge, head: logistic, knob: risk, grid: [0.1, 0.2], block: 5}
"""


def setting(knob: float, losses: int, tau: float) -> dict[str, Any]:
    counts = {"n": 1000, "losses": losses, "gains": 4, "loss": (losses - 4) / 1000, "accuracy": 0.9}
    return {"knob": knob, "fixed": {}, **counts, "mean_accepted_length": tau, "loose_per_100": 7.5}


@pytest.fixture
def gate() -> Gate:
    torch.manual_seed(0)
    target, draft = tiny_pair()
    return Gate(
        GateConfig(
            head={"type": "linear"},
            features={"h_tok:post": 32},
            target=identify_model(target, "models/tiny/target"),
            draft=identify_model(draft, "models/tiny/draft"),
            tokenizer=identify_tokenizer(byte_tokenizer(), "models/tiny/target"),
            labels={"task": "sums"},
            prompting={"num_fewshot": 2, "chat_template": False, "system": None},
        )
    )


@pytest.fixture
def report(gate: Gate) -> dict[str, Any]:
    """A calibration that keeps 3 and 5 points, but not 2."""
    scope = {"gate": gate_hash(gate), "temperature": 0.0, "tokenizer": gate.config.tokenizer.vocabulary}
    points = [
        point(0.02, certified=False, settings={"risk": 0.1}, bound=0.024, refusal="Too few."),
        point(0.03, settings={"risk": 0.1}, bound=0.024, mean_accepted_length=5.25),
        point(0.05, settings={"risk": 0.2}, bound=0.045),
    ]
    made = certificate(*points, block=5, scope=scope, source="training documents of the task 'sums'")
    return {
        "method": "judged",
        "rule": "autojudge",
        "drafter": "model",
        "block": 5,
        "knob": "risk",
        "confidence": 0.95,
        "headline_budget": 0.03,
        "settings": [setting(0.1, 12, 5.25), setting(0.2, 30, 6.5)],
        "development": [setting(0.1, 10, 5.0)],
        "proof": asdict(made),
    }


@pytest.fixture
def place(tmp_path: Path, gate: Gate, report: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with everything that the stage reads; registration only notes what it was given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GISTGATE_PARAMS", raising=False)
    Path("params.yaml").write_text(PARAMS)
    gate.save("models/heads/logistic")
    write(Path("reports/calibration/learned/judged.json"), report)
    for name, tau in (("exact", 4.0), ("judged", 5.5)):
        found = {"knob": None if name == "exact" else 0.1, "n": 1000, "accuracy": 0.91, "loose_per_100": 3.0}
        write(Path(f"reports/evaluation/{name}/summary.json"), {**found, "mean_accepted_length": tau})
    monkeypatch.setattr(export, "register_gate", lambda _params, folder, metrics: noted.append((folder, metrics)))
    noted.clear()
    return tmp_path


noted: list[Any] = []


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_the_folder_holds_what_calibration_found(place: Path) -> None:
    export.main()
    gate = Gate.load("models/export", *tiny_pair(), byte_tokenizer())
    assert gate.certificate is not None
    points = [
        (point.budget, point.settings["risk"], point.mean_accepted_length) for point in gate.certificate.certified
    ]
    assert points == [(0.03, 0.1, 5.25), (0.05, 0.2, 6.5)]
    assert (gate.certificate.block, gate.certificate.scope["temperature"]) == (5, 0.0)
    assert [(point.budget, point.refusal) for point in gate.certificate.points if not point.certified] == [
        (0.02, "Too few.")
    ]
    chosen = choose(DecodeOptions(), gate.certificate, has_gate=True, has_draft=True)
    assert (chosen.settings, chosen.block, chosen.doubts) == ({"risk": 0.1}, 5, ())
    assert (place / "models/export/custom_generate/generate.py").is_file()
    ((folder, metrics),) = noted
    assert folder == Path("models/export")
    assert metrics["budget_0.03"] == {"bound": 0.024, "knob": 0.1, "tau": 5.25}


def test_the_card_tells_results_use_and_limits(place: Path) -> None:
    export.main()
    card = Path("models/export/README.md").read_text()
    assert "| 3.0 | 0.1 | 2.4 | 5.25 |" in card
    assert "| 2.0 | strict | not certified | – |" in card
    assert "Budget 2.0: Too few." in card
    assert "| calibration | 0.2 | 1000 | 2.6 | 90.0 | 6.50 | 7.5 |" in card
    assert "| judged | 0.1 | 1000 | 91.0 | 5.50 | 3.0 |" in card
    assert 'custom_generate="FOLDER"' in card
    assert (
        "--gen_kwargs custom_generate=FOLDER trust_remote_code=True gate=FOLDER draft_model=models/tiny/draft" in card
    )
    assert "training documents of the task 'sums'" in card
    assert "few-shot examples: 2" in card
    assert str(place) not in card


def test_without_an_evaluation_the_card_leaves_it_out(place: Path) -> None:
    Path("reports/evaluation/judged/summary.json").unlink()
    export.main()
    assert "On test prompts" not in Path("models/export/README.md").read_text()


def test_where_nothing_is_certified_the_export_decodes_strictly(place: Path, report: Any) -> None:
    for found in report["proof"]["points"]:
        found.update(certified=False, refusal="Too many losses.")
    write(Path("reports/calibration/learned/judged.json"), report)
    export.main()
    gate = Gate.load("models/export")
    assert gate.certificate is not None and gate.certificate.certified == ()
    chosen = choose(DecodeOptions(), gate.certificate, has_gate=True, has_draft=True)
    assert (chosen.rule, chosen.block) == ("exact", 5)
    assert "no setting certified" in chosen.doubts[0]


def test_equal_inputs_give_equal_bytes_and_old_files_go(place: Path) -> None:
    def content() -> dict[str, bytes]:
        folder = Path("models/export")
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    export.main()
    first = content()
    Path("models/export/old.txt").write_text("")
    export.main()
    assert content() == first


def test_a_calibration_of_other_weights_is_refused(place: Path, gate: Gate) -> None:
    with torch.no_grad():
        next(gate.parameters()).add_(1)
    gate.save("models/heads/logistic")
    with pytest.raises(UserError, match="other weights than the gate's. Run the stage `calibrate_learned` again"):
        export.main()
    assert not Path("models/export").exists()


def test_a_head_that_no_method_asks_is_refused(place: Path) -> None:
    Path("params.yaml").write_text(PARAMS.replace("rule: autojudge, head: logistic", "rule: autojudge, head: mlp"))
    with pytest.raises(UserError, match="No method of params.yaml asks the head 'logistic'"):
        export.main()


def test_the_guard_of_the_very_gate_goes_along(place: Path, gate: Gate) -> None:
    guard = DomainGuard(*fit(torch.randn(50, 32), 4), far=1.5, about={"gate": gate_hash(gate)})
    guard.save(Path("models/domain"))
    export.main()
    assert DomainGuard.load("models/export").far == 1.5
    Gate.load("models/export", *tiny_pair(), byte_tokenizer())


def test_a_guard_of_another_gate_stays_behind(place: Path) -> None:
    DomainGuard(*fit(torch.randn(50, 32), 4), about={"gate": "another"}).save(Path("models/domain"))
    export.main()
    assert not Path("models/export/domain.json").exists()
