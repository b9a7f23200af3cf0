"""The domain guard: what it notices, and what it does to a decoder."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gistgate.core.block import Reason
from gistgate.core.decoder import Decoder
from gistgate.core.domain import CONFIG_FILE, DomainGuard, Watched, fit, step
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import pair, prompts
from tests.core.watching import HalfGate

WIDTH = 32
"""Width of the tiny models."""
BATCH = prompts(5, 9, 2)


def guard(**settings: object) -> DomainGuard:
    states = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0))
    return replace(DomainGuard(*fit(states, 8), about={"rule": "prob"}), **settings)


def test_with_all_directions_it_is_the_mahalanobis_distance():
    chance = torch.Generator().manual_seed(1)
    states = torch.randn(500, 4, generator=chance) @ torch.randn(4, 4, generator=chance)
    fitted = DomainGuard(*fit(states, 3))
    point = torch.randn(4, generator=chance)
    x = (point - states.mean(0)).double()
    exact = x @ torch.linalg.inv(torch.cov(states.T.double())) @ x / 4
    assert fitted.distance(point).item() == pytest.approx(exact.item(), rel=1e-3)


def test_the_bet_gains_by_many_loose_tokens_and_loses_by_few():
    assert step(4, 8, 0.1) > 0 > step(0, 8, 0.1)
    usual = 0.1 * step(1, 1, 0.1) + 0.9 * step(0, 1, 0.1)
    assert usual < 0, "at the calibration's own rate the bet loses"
    assert math.isfinite(step(1, 1, 0.0)) and math.isfinite(step(1, 2, 0.9))
    watched = Watched()
    for gain in (-5.0, 2.0, -1.0, 0.5):
        watched.bet(gain)
    assert watched.highest == 2.0 and watched.gain == 1.5


def decode(rule_id: str, *guards: DomainGuard, **settings: float):  # type: ignore[no-untyped-def]
    target, draft = pair("llama")
    decoder = Decoder(
        target,
        ModelDrafter(draft),
        make_rule(rule_id, **settings),
        4,
        gate=HalfGate(),
        guards=guards,
    )
    return decoder.generate(BATCH, max_new_tokens=24)


def ids(rows):  # type: ignore[no-untyped-def]
    return [row.ids for row in rows]


def test_a_guard_that_never_alarms_changes_nothing():
    watched = decode("prob", guard(), r=0.001)
    free = decode("prob", r=0.001)
    assert ids(watched) == ids(free) and any(row.statistics.loose for row in free)
    assert all(set(row.statistics.extra) == {"domain_distance", "domain_bet"} for row in watched)


def test_a_strange_text_is_strict_from_its_first_block():
    watched = decode("prob", guard(far=0.0), r=0.001)
    assert ids(watched) == ids(decode("exact"))
    assert all(row.statistics.extra["domain_far"] == 1 for row in watched)
    assert all(row.statistics.extra["domain_rounds"] == row.statistics.forwards for row in watched)


def test_one_alarm_moves_to_the_stricter_setting_and_two_close():
    once = guard(far=0.0, stricter=0.01)
    twice = guard(far=0.0, bet=-1.0, stricter=0.01)
    assert ids(decode("prob", once, r=0.001)) == ids(decode("prob", r=0.01)) != ids(decode("exact"))
    assert ids(decode("prob", twice, r=0.001)) == ids(decode("exact"))


@pytest.mark.parametrize("about", [{"rule": "autojudge"}, {}])
def test_the_setting_of_another_rule_closes(about: dict):
    """The risk of a judge is no probability ratio, although both are numbers below one."""
    watched = decode("prob", guard(far=0.0, stricter=0.01, about=about), r=0.001)
    assert ids(watched) == ids(decode("exact")) != ids(decode("prob", r=0.01))


def test_too_many_loose_tokens_close_the_rest():
    watched = decode("prob", guard(rate=0.001, bet=0.5), r=0.001)
    caught = [row for row in watched if row.statistics.extra.get("domain_loose")]
    assert caught
    for row in caught:
        first = row.reasons.index(Reason.LOOSE)
        assert (
            Reason.LOOSE not in row.reasons[first + 5 :]
        )  # the block of four and the target's token behind it


def test_rows_are_watched_one_by_one():
    target, draft = pair("llama")
    watch = guard(far=1.2, rate=0.05, bet=1.0)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("prob", r=0.001), 4, guards=[watch])
    together = decoder.generate(BATCH, max_new_tokens=24)
    alone = [decoder.generate([prompt], max_new_tokens=24)[0] for prompt in BATCH]
    assert ids(together) == ids(alone)
    assert [row.statistics.loose for row in together] == [row.statistics.loose for row in alone]


@pytest.mark.parametrize("stricter", [None, 0.2])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, stricter: float | None):
    saved = guard(far=1.5, stricter=stricter, about={"prompts": 200})
    saved.save(tmp_path)
    again = DomainGuard.load(tmp_path)
    assert torch.equal(again.basis, saved.basis) and torch.equal(again.variances, saved.variances)
    assert (again.far, again.bet, again.stricter, again.about) == (
        1.5,
        math.inf,
        stricter,
        {"prompts": 200},
    )


def test_a_folder_without_one_or_with_a_damaged_one_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="does not know which prompts"):
        DomainGuard.load(tmp_path)
    guard().save(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        DomainGuard.load(tmp_path)
