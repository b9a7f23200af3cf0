"""What calibration decoded, prompt by prompt, as a finished run left it: the truth that resampling draws from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.certification.records import read_differences
from pipeline.common.operating_point import calibration_file
from pipeline.params import Params


@dataclass(frozen=True)
class Recorded:
    """The tested settings of one method."""

    method: str
    """Its name in params.yaml."""
    knobs: tuple[float, ...]
    """Values of the knob from strict to loose, as calibration tested them [S]."""
    outcomes: Array
    """d = strict - loose score of every setting and prompt [S, N]."""

    @property
    def losses(self) -> Array:
        """Mean of d by setting [S]: its true loss, where these outcomes are the world."""
        return np.asarray(self.outcomes.mean(-1))


def recorded_methods(params: Params) -> list[Recorded]:
    """All calibrated methods with a knob.

    Raises:
        UserError: a calibration file, or the outcomes beside it, are missing or do not belong together.
    """
    return [recorded(params, name) for name, method in params.methods.items() if method.knob is not None]


def recorded(params: Params, name: str) -> Recorded:
    """One method, from the outcomes that the stage `calibrate` wrote."""
    path = calibration_file(params, name)
    settings, outcomes = read_json(path)["settings"], read_differences(path.with_suffix(".csv"))
    counted = [(int((d > 0).sum()), int((d < 0).sum())) for d in outcomes]
    if counted != [(setting["losses"], setting["gains"]) for setting in settings]:
        raise UserError(
            f"{path.with_suffix('.csv')} does not hold the outcomes that {path} counts. "
            f"Run `python -m pipeline.stages.calibrate {name}` again."
        )
    return Recorded(name, tuple(setting["knob"] for setting in settings), outcomes)
