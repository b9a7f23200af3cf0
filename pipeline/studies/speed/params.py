"""pipeline/studies/speed/params.yaml: the K at which methods are certified anew and timed."""

from __future__ import annotations

from dataclasses import replace

from gistgate.errors import UserError
from pipeline.common.paths import STUDIES
from pipeline.common.reading import Count, Natural, block, nearest, read
from pipeline.params import Params
from pipeline.studies.table.params import table_params

FILE = STUDIES / "speed/params.yaml"


@block
class SpeedParams:
    """What `make speed` certifies anew, so that every method is timed at its own K."""

    blocks: dict[str, Count]
    """K by method, in tokens, the large table's methods among them; all others are timed at decoding.block."""
    judged: Natural = 0
    """Draws of this study's calibration prompts that are passed over, because they were judged before."""


def speed_params(known: Params | None = None) -> Params:
    """The methods of `known` (the large table's) that the study's file names and no others, each at its own K.

    Raises:
        UserError: the file cannot be read, or names a method that does not exist.
    """
    known, blocks = known or table_params(), read(SpeedParams, FILE).blocks
    for name in blocks:
        if name not in known.methods:
            raise UserError(f"{FILE}: 'blocks.{name}' is no method. {nearest(name, known.methods)}")
    return replace(known, methods={name: replace(known.method(name), block=k) for name, k in blocks.items()})
