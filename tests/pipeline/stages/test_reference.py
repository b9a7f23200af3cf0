"""Strict answers of every split, and an interruption in the middle of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gistgate.core.files import read_json, read_json_lines
from gistgate.core.utils import UserError
from pipeline.decode import read_prompts
from pipeline.outcomes import Setup, maker_of, read_reference
from pipeline.params import read_params
from pipeline.paths import SCRATCH, prompts_of, reference_of
from pipeline.stages import prompts as stage
from pipeline.stages import reference
from pipeline.stages.calibrate import chunk_of
from tests.pipeline.stages.test_evaluate import PARAMS, project  # noqa: F401 (a fixture)


class InterruptedInTheMiddleError(Exception):
    """What ends the first start."""


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_an_interruption_loses_no_finished_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BATCHES", 1)
    decode, decoded = reference.run_split, []

    def counted(*arguments: Any) -> Any:
        if len(decoded) == 1:
            raise InterruptedInTheMiddleError
        decoded.append([prompt["id"] for prompt in arguments[3]])
        return decode(*arguments)

    monkeypatch.setattr(reference, "run_split", counted)
    with pytest.raises(InterruptedInTheMiddleError):
        reference.main()
    first, decoded[:] = decoded[0], [[], []]
    reference.main()
    again = [name for part in decoded for name in part]
    assert first and not set(first) & set(again)

    for split in reference.SPLITS:
        rows = read_json_lines(reference_of(split))
        assert [row["id"] for row in rows] == [prompt["id"] for prompt in read_json_lines(prompts_of(split))]
        assert all(row["cut"] == (len(row["ids"]) == 12) for row in rows)
        told = read_json(reference_of(split).with_suffix(".json"))  # the piece of the first start counts as well
        assert told["slots_used"] == sum(row["statistics"]["forwards"] for row in rows) <= told["slots"]
        assert told["idle_share_of_slots"] == 1 - told["slots_used"] / told["slots"]
    assert not list(Path(SCRATCH).glob("reference-*"))


@pytest.mark.slow
def test_in_bfloat16_a_setting_that_accepts_nothing_gives_the_reference(project: Path) -> None:  # noqa: F811
    """Rounding depends on the batch there, so the reference comes in the pieces that calibration decodes."""
    file = project / "models/pairs/tiny.yaml"
    file.write_text(file.read_text().replace("float32", "bfloat16"))
    more = {**PARAMS, "prompts": {**PARAMS["prompts"], "development": 8, "calibration": 8}}
    (project / "params.yaml").write_text(yaml.safe_dump(more))
    stage.main()
    reference.main()
    params = read_params()
    setup = Setup(params, {split: read_prompts(split) for split in reference.CALIBRATED})
    assert setup.fresh == set(reference.CALIBRATED)  # answers of the reference are not taken over, but decoded again
    decode = setup.loose("random", params.method("random"), params.decoding.block)
    size = chunk_of(params, setup.pair.target.dtype)
    assert size == reference.TOGETHER * params.decoding.batch_size
    for split, prompts in setup.prompts.items():
        assert len(prompts) > size
        for start in range(0, len(prompts), size):
            some = prompts[start : start + size]
            found = [answer.ids for answer in decode({"rate": 0.0}, some, start)]
            rows = read_reference(split, prompts, setup.maker)
            assert found == [row["ids"] for row in rows[start : start + size]]


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_strict_answers_of_other_weights_or_other_prompts_are_refused() -> None:
    """DVC does not see weights that change in their folder; loose answers would be compared with older ones."""
    reference.main()
    setup = Setup(read_params())
    prompts = setup.prompts["calibration"]
    assert len(read_reference("calibration", prompts, setup.maker)) == len(prompts)
    with torch.no_grad():
        setup.pair.target.lm_head.weight += 1
    assert maker_of(setup.pair) != setup.maker
    with pytest.raises(UserError, match="was made with other weights or another tokenizer"):
        read_reference("calibration", prompts, maker_of(setup.pair))
    other = [{**prompts[0], "ids": [*prompts[0]["ids"], 7]}, *prompts[1:]]
    with pytest.raises(UserError, match="answers other prompts"):
        read_reference("calibration", other, setup.maker)
