"""The run that everybody starts with: its calibration prompts must be free for its choice of settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.certificates.ledger import Ledger, Look
from gistgate.certificates.looks import PUBLISHED
from gistgate.certificates.scores import TaskScore
from gistgate.errors import UserError
from pipeline.certification.looks import looks_of
from pipeline.certification.outcomes import method_of
from pipeline.common.closure import ROOT
from pipeline.common.scope import scope_of
from pipeline.pairs.pair import Pair
from pipeline.pairs.training import make_model
from pipeline.pairs.world.tokenizer import train_tokenizer
from pipeline.params import Params, read_params
from pipeline.stages.calibrate import request_of
from pipeline.tasks.loading import load_task
from tests.tiny import write_rows

LookOf = Callable[[Params, str], Look]
PARAMS = read_params(ROOT / "params.yaml")


@pytest.fixture(scope="module")
def look_of(tmp_path_factory: pytest.TempPathFactory) -> LookOf:
    """The look of a method as a clone takes it, but for its prompts: trained elsewhere, and chosen by later code.

    The models have the right shape and no training, which `way_of` leaves out. No answer of the task counts for a look.
    """
    folder, tokenizer = tmp_path_factory.mktemp("task"), train_tokenizer()
    for split in ("train", "test"):
        write_rows(folder / f"{split}.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}])
    sizes = (PARAMS.pair_training.target, PARAMS.pair_training.draft)
    pair = Pair(*(make_model(size, tokenizer, seed=0) for size in sizes), tokenizer, PARAMS.pair)

    def made(params: Params, name: str) -> Look:
        task = load_task(replace(params, task_data=str(folder)))
        setup: Any = SimpleNamespace(
            params=params, task=task, scorer=SimpleNamespace(id=TaskScore.id), prompts={"calibration": []}
        )
        looks, method, seen = looks_of(setup, name), method_of(params, name), []
        taking = looks.before(method, request_of(params), True, scope_of(params, name, pair, task, None, []))
        taking.looks = SimpleNamespace(ready_made=looks.ready_made, look=looks.look, take=seen.append)  # type: ignore[assignment]
        taking(SimpleNamespace(settings=[]))  # type: ignore[arg-type]
        return replace(seen[0], code="later code")

    return made


def admits(ledger: Ledger, look: Look, old: Look) -> bool:
    """Whether a clone may take a look at the prompts of an old one."""
    asked = replace(look, prompts=old.prompts, problems=old.problems)
    known = {"problems": ledger.problems.get(old.problems, ()), "rerun": True}
    try:
        ledger.admit(asked, ledger.draws[old.prompts], look.error, **known)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("name", PARAMS.methods)
def test_make_repro_is_not_refused_on_a_fresh_clone(look_of: LookOf, monkeypatch: pytest.MonkeyPatch, name: str):
    """Whoever changes a choice sets `prompts.draw` in params.yaml to the next number, which the choice holds too."""
    monkeypatch.chdir(ROOT)
    ledger, look = Ledger.read(PUBLISHED), look_of(PARAMS, name)
    judged = [old for old in ledger.looks if old.claim == look.claim]
    current = [old for old in judged if old.choice == look.choice]
    assert current or PARAMS.prompts.draw > len({old.prompts for old in judged})
    assert all(admits(ledger, look, old) for old in current)


@pytest.mark.parametrize("name", PARAMS.methods)
def test_another_choice_or_way_on_published_prompts_would_be_refused(
    look_of: LookOf, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(ROOT)
    ledger, look = Ledger.read(PUBLISHED), look_of(PARAMS, name)
    calibrate = replace(PARAMS.calibrate, reserve=PARAMS.calibrate.reserve + 1)
    others = [look_of(replace(PARAMS, calibrate=calibrate), name), replace(look, way="another")]
    assert others[0].choice != look.choice
    judged = [old for old in ledger.looks if old.claim == look.claim]
    assert judged and not any(admits(ledger, other, old) for old in judged for other in others)
