"""Calibration prompts of methods at their own K."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.files import read_json_lines, write_json
from pipeline.certification import further
from pipeline.params import Params
from pipeline.studies.speed.calibrate import fresh
from pipeline.studies.speed.params import FILE
from tests.pipeline.studies.certify.test_prompts import SIZES, params, questions  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def settings(params: Params) -> None:  # noqa: F811
    write_json(FILE, {"blocks": {"prob": 4}})


def test_they_are_as_many_as_the_run_s_and_none_of_them(params: Params):  # noqa: F811
    found = fresh(params)
    assert len(found) == len(questions(found)) == SIZES["calibration"]
    for split in SIZES:
        assert not questions(found) & questions(read_json_lines(Path(f"data/prompts/{split}.jsonl")))
    assert not questions(found) & questions(further.new_prompts(params, 60, "certify"))
    names = {prompt["id"] for split in SIZES for prompt in read_json_lines(Path(f"data/prompts/{split}.jsonl"))}
    assert not names & {prompt["id"] for prompt in found}, "answers are found by these names"
    other = fresh(replace(params, prompts=replace(params.prompts, draw=2)))
    assert len(other) == SIZES["calibration"] and not questions(found) & questions(other)
    write_json(FILE, {"blocks": {"prob": 4}, "judged": 1})
    assert fresh(params) == other, "draws that were judged are passed over"


def test_a_task_without_enough_documents_is_refused(params: Params, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    monkeypatch.setattr(further, "of_the_world", lambda _params: False)
    used = replace(params, prompts=replace(params.prompts, draw=3))
    with pytest.raises(UserError, match=r"asks for 20 prompts, but draw 3 .* has only 0 unused ones"):
        fresh(used)
