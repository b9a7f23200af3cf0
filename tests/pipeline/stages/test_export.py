"""The stage `export`: calibration and head become one folder, the same bytes every time."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gistgate.core.domain import DomainGuard, fit
from gistgate.core.files import fingerprint, read_json, write_json, write_json_lines, write_text
from gistgate.core.identity import gate_hash
from gistgate.core.utils import UserError
from gistgate.coverage.choose import choose
from gistgate.export.write import write_code
from gistgate.gate import Gate
from gistgate.models.options import DecodeOptions
from pipeline.pair.pair import Pair
from pipeline.paths import calibration_file
from pipeline.stages import export
from tests.certificates.proofs import certificate, linear_gate, point
from tests.pipeline.parameters import content
from tests.tiny import byte_tokenizer, tiny_pair

PARAMS = """
headline_budget: 0.03
prompts: {guard: 0}
train: {heads: [logistic, mlp], headline_head: logistic}
methods:
  fly: {rule: fly, knob: theta, grid: [1.0, 0.5]}
  other: {rule: autojudge, after: models/heads/mlp, knob: risk, grid: [0.1, 0.2]}
  judged: {rule: autojudge, after: models/heads/logistic, knob: risk, grid: [0.1, 0.2], block: 5}
"""
EXPORT, CARD = Path("models/export"), Path("models/export/README.md")
(TARGET, DRAFT), TOKENIZER = tiny_pair(), byte_tokenizer()


def write_params(changes: str) -> None:
    write_text(Path("params.yaml"), yaml.safe_dump(content(**yaml.safe_load(changes))))


def setting(knob: float, losses: int, tau: float) -> dict[str, Any]:
    counts = {"n": 1000, "losses": losses, "gains": 4, "loss": (losses - 4) / 1000, "accuracy": 0.9}
    return {"knob": knob, "fixed": {}, **counts, "mean_accepted_length": tau, "loose_per_100": 7.5}


def trained() -> Gate:
    torch.manual_seed(0)
    prompting = {"num_fewshot": 2, "chat_template": False, "system": None}
    return linear_gate(TARGET, DRAFT, labels={"task": "sums"}, prompting=prompting)


def calibrated(gate: Gate) -> dict[str, Any]:
    """A calibration that keeps 3 and 5 points, but not 2."""
    scope = {
        "gate": gate_hash(gate),
        "temperature": 0.0,
        "tokenizer": gate.config.tokenizer.vocabulary,
    }
    points = [
        point(0.02, certified=False, settings={"risk": 0.1}, bound=0.024, refusal="Too few."),
        point(0.03, settings={"risk": 0.1}, bound=0.024, mean_accepted_length=5.25),
        point(0.05, settings={"risk": 0.2}, bound=0.045),
    ]
    made = certificate(
        *points, block=5, scope=scope, source="training documents of the task 'sums'"
    )
    about = {
        "method": "judged",
        "rule": "autojudge",
        "drafter": "model",
        "block": 5,
        "knob": "risk",
    }
    return {
        **about,
        "confidence": 0.95,
        "headline_budget": 0.03,
        "settings": [setting(0.1, 12, 5.25), setting(0.2, 30, 6.5)],
        "development": [setting(0.1, 10, 5.0)],
        "budgets": {"0.03": {"certified": True, "knob": 0.1, "fixed": {}}},
        "proof": asdict(made),
    }


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be registered."""
    seen: list[Any] = []
    monkeypatch.setattr(
        export, "register_gate", lambda _params, folder, metrics: seen.append((folder, metrics))
    )
    return seen


@pytest.fixture
def report(tmp_path: Path, noted: list[Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calibration in a folder with all that the stage reads; neither is code written nor a
    model registered.
    """
    monkeypatch.chdir(tmp_path)
    write_params(PARAMS)
    gate = trained()
    gate.save("models/heads/logistic")
    path = calibration_file("judged")
    write_json(path, calibrated(gate))
    for name, tau in (("exact", 4.0), ("judged", 5.5)):
        found = {
            "knob": None if name == "exact" else 0.1,
            "n": 1000,
            "accuracy": 0.91,
            "loose_per_100": 3.0,
        }
        write_json(
            f"reports/evaluation/{name}/summary.json", {**found, "mean_accepted_length": tau}
        )
    monkeypatch.setattr(export, "write_code", lambda folder: None)
    return path


def test_the_folder_holds_what_calibration_found(
    report: Path, noted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "write_code", write_code)
    export.main()
    found = Gate.load(EXPORT, TARGET, DRAFT, TOKENIZER).certificate
    assert found is not None and (found.block, found.scope["temperature"]) == (5, 0.0)
    points = [
        (point.budget, point.settings["risk"], point.mean_accepted_length)
        for point in found.certified
    ]
    assert points == [(0.03, 0.1, 5.25), (0.05, 0.2, 6.5)]
    assert [(point.budget, point.refusal) for point in found.points if not point.certified] == [
        (0.02, "Too few.")
    ]
    chosen = choose(DecodeOptions(), found, has_gate=True, has_draft=True)
    assert (chosen.settings, chosen.block) == ({"risk": 0.1}, 5)
    assert (EXPORT / "custom_generate/generate.py").is_file()
    ((folder, metrics),) = noted
    assert folder == EXPORT and metrics["budget_0.03"] == {"bound": 0.024, "knob": 0.1, "tau": 5.25}


def test_the_card_tells_results_use_and_limits_and_equal_inputs_give_equal_bytes(
    report: Path,
) -> None:
    export.main()
    first, card = fingerprint(EXPORT), CARD.read_text()
    for told in (
        "| 3.0 | 0.1 | 2.4 | 5.25 |",
        "| 2.0 | strict | not certified | – |",
        "| calibration | 0.2 | 1000 | 2.6 | 90.0 | 6.50 | 7.5 |",
        "| judged | 0.1 | 1000 | 91.0 | 5.50 | 3.0 |",
        "--gen_kwargs custom_generate=FOLDER trust_remote_code=True gate=FOLDER draft_model=",
        "training documents of the task 'sums'",
    ):
        assert told in card
    assert str(Path.cwd()) not in card
    write_text(EXPORT / "old.txt", "")  # goes with the next export
    export.main()
    assert fingerprint(EXPORT) == first
    Path("reports/evaluation/judged/summary.json").unlink()
    export.main()
    assert "On test prompts" not in CARD.read_text()


def test_where_nothing_is_certified_the_export_decodes_strictly(report: Path) -> None:
    told = read_json(report)
    for found in told["proof"]["points"]:
        found.update(certified=False, refusal="Too many losses.")
    write_json(report, told)
    export.main()
    found = Gate.load(EXPORT).certificate
    assert found is not None and found.certified == ()
    chosen = choose(DecodeOptions(), found, has_gate=True, has_draft=True)
    assert (chosen.rule, chosen.block) == ("exact", 5)


def test_a_calibration_of_other_weights_or_of_no_method_is_refused(report: Path) -> None:
    gate = trained()
    with torch.no_grad():
        next(gate.parameters()).add_(1)
    gate.save("models/heads/logistic")
    with pytest.raises(UserError, match="other weights than the gate's. Run `calibrate` again"):
        export.main()
    other = PARAMS.replace("headline_head: logistic", "headline_head: linear").replace(
        "mlp]", "mlp, linear]"
    )
    write_params(other)
    with pytest.raises(UserError, match="No method of params.yaml asks the head 'linear'"):
        export.main()
    assert not EXPORT.exists()


def test_a_guard_goes_along_where_enough_prompts_say_what_is_usual(
    report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = DomainGuard(*fit(torch.randn(50, 32), 4), far=1.5)
    monkeypatch.setattr(export, "load_pair", lambda params: Pair(TARGET, DRAFT, TOKENIZER, "tiny"))
    monkeypatch.setattr(export, "fit_domain", lambda params, pair, gate, point, prompts: guard)
    write_params(PARAMS.replace("guard: 0", "guard: 80"))
    for number in (77, 78):
        write_json_lines(
            "data/prompts/guard.jsonl", [{"id": f"guard-{index}"} for index in range(number)]
        )
        export.main()
        assert (EXPORT / "domain.json").exists() == (number == 78)
    assert "77 guard prompts do not say what is usual" in capsys.readouterr().out
    assert DomainGuard.load(EXPORT).far == 1.5
