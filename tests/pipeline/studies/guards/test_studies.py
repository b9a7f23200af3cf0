"""What the pipeline makes of guards: fitting one, the shifted world, and the two reports."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.build.guards import check_guards
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.optional.guards import DomainGuard
from gistgate.optional.guards.domain import fit
from gistgate.request.statistics import Statistics
from pipeline.common.decoders import Outcome
from pipeline.common.operating_point import Operating
from pipeline.heads import guard_fit as domain_fit
from pipeline.pairs.pair import Pair
from pipeline.pairs.world.corpus import documents
from pipeline.pairs.world.lexicon import QUESTION, SOLUTION
from pipeline.pairs.world.params import SHIFTED_START, WorldParams
from pipeline.pairs.world.style import make_style
from pipeline.params import MethodParams
from pipeline.stages import domain
from pipeline.studies.guards import page, shadow
from tests.certificates.proofs import gate_with
from tests.tiny import byte_tokenizer, tiny_pair

ROOT = Path(__file__).parents[4]
POINT = Operating("loose", "prob", "model", 4, {"r": 0.001}, knob=0.001)


class Echo:
    """A task that finds every answer right."""

    def text(self, tokenizer: Any, ids: list[int]) -> str:
        return str(tokenizer.decode(ids))

    def score(self, doc: Any, text: str) -> float:
        return 1.0


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A calibration that tested three settings, strict to loose."""
    monkeypatch.chdir(tmp_path)
    method = MethodParams("prob", knob="r", grid=(0.1, 0.001))
    path = Path("reports/calibration/free/loose.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"settings": [{"knob": value} for value in (0.1, 0.01, 0.001)]}))
    return SimpleNamespace(
        seed=1, decoding=SimpleNamespace(batch_size=16), methods={"loose": method}, method=lambda name: method
    )


def prompts(number: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 259, (number, 6), generator=generator).tolist()
    common = {"doc": {}, "stops": [], "max_new_tokens": 10}
    return [{"id": f"p-{index}", "ids": row, **common} for index, row in enumerate(ids)]


def test_a_guard_is_fitted_from_calibration_prompts(params: Any):
    pair = Pair(*tiny_pair(noise=0.3), byte_tokenizer(), "tiny")
    guard = domain_fit.fit_domain(params, pair, Echo(), None, POINT, prompts(80))  # type: ignore[arg-type]
    assert guard.mean.shape == (32,) and len(guard.basis) == 31 and 0 < guard.rate < 1
    assert 0.8 < guard.far < 2 and 0 < guard.bet < math.inf
    assert guard.stricter == 0.01, "the next stricter value that was tested"
    assert guard.about["prompts"] == 80 and guard.about["gate"] is None
    check_guards([guard], None, pair.target)
    with torch.no_grad():
        pair.target.model.norm.weight.mul_(1.5)
    with pytest.raises(UserError, match="fitted with another target"):
        check_guards([guard], None, pair.target)
    other = replace(guard, about={"gate": "another"})
    with pytest.raises(UserError, match="fitted with another gate"):
        check_guards([other], gate_with(1.0), pair.target)
    with pytest.raises(UserError, match="do not say what is usual"):
        domain_fit.fit_domain(params, pair, Echo(), None, POINT, prompts(77))  # type: ignore[arg-type]


def test_the_strictest_setting_has_none_below_it(params: Any):
    assert domain_fit.stricter_setting(params, replace(POINT, knob=0.1)) is None


@pytest.mark.parametrize("number, share, place", [(99, 0.9, 89), (39, 0.975, 38), (38, 0.975, None)])
def test_the_threshold_is_the_conformal_quantile(number: int, share: float, place: int | None):
    """Of n + 1 exchangeable values the new one exceeds it with probability 1 - share at most."""
    values = [float(value) for value in range(number)]
    assert domain_fit.quantile(values[::-1], share) == (math.inf if place is None else place)


def test_where_nothing_is_certified_there_is_no_guard_and_the_run_goes_on(
    params: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(_params: Any) -> None:
        raise domain_fit.NothingToGuardError("Nothing is certified.")

    monkeypatch.setattr(domain, "Study", refuse)
    monkeypatch.setattr(domain, "read_params", lambda: params)
    domain.main("fit")
    assert "none. Nothing is certified." in capsys.readouterr().out
    assert json.loads(Path("models/domain/none.json").read_text())["reason"] == "Nothing is certified."
    assert domain_fit.saved_for(None) is None  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Nothing is certified"):
        domain.main()


def test_an_error_that_says_nothing_about_the_guard_leaves_it_as_it_was(params: Any, monkeypatch: pytest.MonkeyPatch):
    def fail(_params: Any) -> None:
        raise UserError("The weights do not fit.")

    monkeypatch.setattr(domain, "Study", fail)
    monkeypatch.setattr(domain, "read_params", lambda: params)
    with pytest.raises(UserError, match="do not fit"):
        domain.main("fit")
    assert not Path("models/domain").exists()


def test_the_shifted_world_asks_otherwise_and_of_larger_numbers():
    usual, shifted = WorldParams(), WorldParams(kind="shifted")
    rows = {world.kind: documents(world, 1, "test", 60) for world in (usual, shifted)}
    starts = {
        kind: [int(next(word for word in row["question"].split() if word.isdigit())) for row in found]
        for kind, found in rows.items()
    }
    assert min(starts["shifted"]) >= SHIFTED_START[0] > min(starts["similar"])
    assert max(starts["shifted"]) > 60 >= max(starts["similar"])
    styles = [make_style(world, "target", 1).weights for world in (usual, shifted)]
    assert all(styles[0][site] == styles[1][site] for site in SOLUTION)
    assert any(styles[0][site] != styles[1][site] for site in QUESTION)


def outcome(score: float, **extra: float) -> Outcome:
    counted = Statistics(forwards=2, strict=5, loose=3, own=2, extra=extra)
    return Outcome("p", [], "", score, counted)


def test_an_arm_is_described_against_strict():
    strict = [outcome(1.0), outcome(1.0), outcome(0.0), outcome(1.0)]
    loose = [outcome(1.0), outcome(0.0, domain_rounds=2, domain_far=1), outcome(0.0), outcome(1.0, domain_loose=1)]
    found = domain.described(loose, strict)
    assert found["accuracy"] == 0.5 and found["accuracy_difference"]["mean"] == -0.25
    assert (found["alarmed"], found["far"], found["loose"]) == (0.25, 0.25, 0.25)
    assert found["mean_accepted_length"] == 5 and found["loose_per_100"] == 30
    world = {"strict_accuracy": 0.75, "strict_tau": 4.0, "arms": {"guard": found}}
    shown = domain.table({"worlds": {"shifted": world}})
    assert "-25.0" in shown and "25.0%" in shown


def test_how_far_a_shadow_is_off():
    estimates = [{"shadow_tokens": 12.0, "shadow_judged": 2.0}, {"shadow_tokens": 8.0, "shadow_judged": 2.0}]
    real = [Statistics(forwards=1, own=8), Statistics(forwards=2, own=4)]
    assert shadow.off(estimates, real)["mean"] == 1.0
    row = {"method": "fly", "strict": 4.0, "first_step": 6.0, "tau": 5.5, "real_tau": 5.0}
    assert "+10.0%" in shadow.table([row])


def test_the_real_values_are_those_of_the_same_prompts(params: Any):
    path = Path("reports/evaluation/loose/samples.jsonl")
    path.parent.mkdir(parents=True)
    rows = [{"id": f"p-{i}", "statistics": Statistics(forwards=i + 1, own=6).as_dict()} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [one.forwards for one in shadow.real_statistics(params, "loose", ["p-2", "p-0"])] == [3, 1]
    with pytest.raises(UserError, match="lacks the prompt p-9"):
        shadow.real_statistics(params, "loose", ["p-9"])


def test_a_guard_belongs_to_one_gate(params: Any, monkeypatch: pytest.MonkeyPatch):
    domain_fit.save(replace(DomainGuard(*fit(torch.randn(30, 8), 4)), about={"gate": "mine"}))
    monkeypatch.setattr(domain_fit, "gate_hash", lambda gate: gate)
    assert domain_fit.saved_for("mine") is not None and domain_fit.saved_for("yours") is None  # type: ignore[arg-type]


def test_the_page_shows_both_studies_where_they_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="nothing to show"):
        page.main()
    method = {"method": "fly", "strict": 4.0, "first_step": 6.0, "tau": 5.5, "real_tau": 5.0}
    lost = {"mean": -0.05, "low": -0.08, "high": -0.02}
    arm = {"accuracy": 0.5, "accuracy_difference": lost, "mean_accepted_length": 6.0, "alarmed": 0.25}
    worlds = {"shifted": {"strict_accuracy": 0.55, "strict_tau": 4.0, "arms": {"guard": arm}}}
    write_json("reports/shadow.json", {"prompts": 3, "methods": [method]})
    page.main()
    assert "unlike those" not in Path("reports/guards.html").read_text()
    write_json("reports/domain.json", {"method": "m", "knob": 1, "worlds": worlds})
    page.main()
    shown = Path("reports/guards.html").read_text()
    assert "+10.0" in shown and "+20.0" in shown and "-5.0 (-8.0 to -2.0)" in shown and "25.0" in shown


def test_the_page_shows_the_published_estimates():
    rows = read_json(ROOT / "benchmarks/results/shadow.json")["methods"]
    text = (ROOT / "docs/guards.md").read_text()
    for row in rows:
        off = [f"{row[name]:.2f} | {100 * (row[name] / row['real_tau'] - 1):+.1f}" for name in ("first_step", "tau")]
        assert f"| {row['method']} | {row['strict']:.2f} | {' | '.join(off)} | {row['real_tau']:.2f} |" in text
    assert text.partition("| method | strict | first |")[2].count("\n| ") == len(rows)
