"""Strict answers of every split, and an interruption in the middle of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gistgate.files import read_json_lines
from pipeline.common.paths import prompts_of, reference_of
from pipeline.common.resume import SCRATCH
from pipeline.stages import reference
from tests.pipeline.stages.test_evaluate import project  # noqa: F401 (a fixture)


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
    assert not list(Path(SCRATCH).glob("reference-*"))
