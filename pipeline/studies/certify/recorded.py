"""What calibration decoded, prompt by prompt, as a finished run left it: the truth that resampling draws from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines
from gistgate.request.statistics import Statistics, total
from pipeline.common.operating_point import calibration_file
from pipeline.common.resume import SCRATCH
from pipeline.params import Params


@dataclass(frozen=True)
class Recorded:
    """The tested settings of one method."""

    method: str
    """Its name in params.yaml."""
    knobs: tuple[float, ...]
    """From strict to loose, as calibration tested them [S]."""
    outcomes: Array
    """d = strict - loose score of every setting and prompt [S, N]."""

    @property
    def losses(self) -> Array:
        """Mean of d by setting [S]: its true loss, where these outcomes are the world."""
        return np.asarray(self.outcomes.mean(-1))


def recorded_methods(params: Params) -> list[Recorded]:
    """All calibrated methods with a knob.

    Raises:
        UserError: a calibration file, or an outcome that it counted, is missing.
    """
    strict = {row["id"]: row["score"] for row in read_json_lines(Path("data/reference/calibration.jsonl"))}
    return [recorded(params, name, strict) for name, method in params.methods.items() if method.knob is not None]


def recorded(params: Params, name: str, strict: dict[str, float]) -> Recorded:
    """One method; a scratch file belongs to the setting whose losses, gains and counters it has."""
    settings = read_json(calibration_file(params, name))["settings"]
    known = list(decoded(name, strict))
    rows = []
    for setting in settings:
        found = [d for d, counters in known if belongs(d, counters, setting)]
        if not found:
            raise UserError(
                f"The outcomes of '{name}' at {setting['knob']} are not in {SCRATCH / 'calibrate'}. "
                f"Run `python -m pipeline.stages.calibrate {name}` once more: it decodes what is missing."
            )
        rows.append(found[0])
    return Recorded(name, tuple(setting["knob"] for setting in settings), np.array(rows))


def decoded(name: str, strict: dict[str, float]) -> Iterator[tuple[Array, dict[str, Any]]]:
    """Differences [N] and summed counters of every calibration decoding of a method that is still in the scratch."""
    for path in sorted((SCRATCH / "calibrate").glob(f"{name}-calibration-*.jsonl")):
        rows = read_json_lines(path)
        if [row["id"] for row in rows] == list(strict):
            counters = total([Statistics.from_dict({**row["statistics"], "seconds": {}}) for row in rows])
            yield np.array([strict[row["id"]] - row["score"] for row in rows]), counters.as_dict(timed=False)


def belongs(d: Array, counters: dict[str, Any], setting: dict[str, Any]) -> bool:
    """Whether a decoding is the one that a line of the calibration file describes."""
    counted = (int((d > 0).sum()), int((d < 0).sum()))
    return counted == (setting["losses"], setting["gains"]) and counters == setting["statistics"]
