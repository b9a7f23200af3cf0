"""Problems of the embedded world beside those of the task's files: an endless supply for calibration."""

from __future__ import annotations

from pipeline.pairs.world.corpus import documents
from pipeline.pairs.world.params import WorldParams

PURPOSES = ("calibration", "certify", "labels", "speed")
"""What draws problems: the run's own calibration, `make certify`, the study of labels, and `make speed`."""


def further_documents(params: WorldParams, seed: int, purpose: str, count: int, draw: int) -> list[dict[str, str]]:
    """The draw number `draw` (from 1 on) of `count` problems for a purpose.

    They are drawn exactly as those of the test file and independently of them, of other draws and of other purposes.
    A certificate that is made with them therefore speaks about the problems of the test file. An arithmetic may come
    twice, in other words; none of them is in the training file or in a corpus.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"nothing draws problems for the purpose '{purpose}'")
    return documents(params, seed, "test", count, stream=f"{purpose} {draw}")
