"""What a comparison of servers says beside its verdict: a control, speed, and a quick look."""

from typing import Any

import pytest

from gistgate.cli.certify import Options
from gistgate.cli.quick import quick
from gistgate.core.utils import UserError
from tests.certify.scripted import Script, serving
from tests.cli.certifying import certifying, row


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Certify one script against another, with 80 documents."""
    return certifying(tmp_path, monkeypatch)


def test_a_control_finds_a_baseline_that_differs_from_itself(run):
    """It is asked behind the run, one request at a time, and has no bearing on the verdict."""
    fickle = frozenset(range(40))
    card, path = run(Script(fickle=fickle), Script(wrong=frozenset({3})), control=80)
    assert card.verdict == "PASS" and row((card, path)).losses == 1
    assert (card.control["prompts"], card.control["concurrent"]) == (80, 1)
    assert card.control["baseline"] == {"differing": 40, "worse": 40, "loss": 0.5}
    assert card.control["candidate"] == {"differing": 1, "worse": 1, "loss": 1 / 80}
    assert "does not repeat its own answers" in path.with_suffix(".md").read_text()
    assert card.scope["sampling"]["concurrent"] == 8
    steady, _ = run(Script(), Script(), control=5, concurrent=1, draw=1)
    assert steady.control["baseline"]["differing"] == 0 and steady.control["concurrent"] > 1
    assert "does not repeat" not in steady.text


def test_a_baseline_that_is_gone_behind_the_run_costs_the_control_alone(run):
    drops = dict.fromkeys(range(80), 99)

    class Gone(list):  # type: ignore[type-arg]
        def append(self, body: Any) -> None:
            super().append(body)
            if len(self) == 80:
                strict.drops |= drops

    strict = Script(asked=Gone())
    card, _ = run(strict, Script(), control=1)
    assert card.verdict == "PASS" and "did not answer again" in card.text


def test_further_prompts_are_timed_and_the_speed_stands_beside_the_verdict(run):
    strict, loose = Script(pace=0.03), Script()
    card, path = run(strict, loose, time=4, prompts=70)
    timed = [body for body in strict.asked if body.get("stream")]
    tested = [body["prompt"] for body in strict.asked if not body.get("stream")]
    assert len(timed) == 5 and len(tested) == 70
    assert not {body["prompt"] for body in timed[1:]} & set(tested)
    assert card.speed["prompts"] == 4 and card.speed["answer"]["ratio"] > 1
    assert card.headline == f"{card.sentence}; {card.speed['verdict']}"
    assert card.headline in path.with_suffix(".md").read_text()
    with pytest.raises(UserError, match="--time takes 80 prompts beside those of the test"):
        run(Script(), Script(), time=80)


def test_a_quick_look_shows_what_differs_and_spends_nothing(run, capsys, tmp_path):
    with serving(Script()) as strict, serving(Script(wrong=frozenset(range(80)))) as loose:
        asked = {"strict": strict, "loose": loose, "task": "sums", "budget": 0.1}
        assert quick(Options(**asked, ledger=tmp_path / "ledger.json")) == "QUICK"
    said = capsys.readouterr().out
    assert "quick look at 20 prompts" in said and "20 lost, loss 100.00 points" in said
    assert said.count("candidate:") == 3 and "at most 60 prompts" in said
    assert not [*tmp_path.rglob("*.json"), *tmp_path.rglob("answers*")]
