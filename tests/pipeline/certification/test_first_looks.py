"""The run that everybody starts with: its calibration prompts must be free for its choice of settings."""

from __future__ import annotations

from dataclasses import replace

from gistgate.certificates.ledger import Ledger
from gistgate.certificates.looks import PUBLISHED
from pipeline.certification.looks import choice_of
from pipeline.common.closure import ROOT
from pipeline.params import Params, read_params


def refused(params: Params, ledger: Ledger) -> list[str]:
    """The methods whose calibration the published ledger would refuse on a fresh clone."""
    found = []
    for name in params.methods:
        looks = [
            look
            for look in ledger.looks
            if look.claim.startswith(f"{params.pair}, {params.task}, ") and look.claim.endswith(f": {name}")
        ]
        repeated = any(look.choice == choice_of(params, name) for look in looks)
        if not repeated and params.prompts.draw <= len({look.prompts for look in looks}):
            found.append(name)
    return found


def test_make_repro_is_not_refused_on_a_fresh_clone():
    """Whoever changes a choice sets `prompts.draw` in params.yaml to the next number."""
    assert refused(read_params(ROOT / "params.yaml"), Ledger.read(ROOT / PUBLISHED)) == []


def test_another_choice_on_published_prompts_would_be_refused():
    params, ledger = read_params(ROOT / "params.yaml"), Ledger.read(ROOT / PUBLISHED)
    calibrate = replace(params.calibrate, reserve=params.calibrate.reserve + 1)
    other = replace(params, calibrate=calibrate, prompts=replace(params.prompts, draw=1))
    assert set(refused(other, ledger)) >= {"exact", "fly", "autojudge"}
