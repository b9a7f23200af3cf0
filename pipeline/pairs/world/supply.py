"""Problems of the embedded world behind those of the task's training file: an endless supply for calibration."""

from __future__ import annotations

from pipeline.pairs.world.corpus import documents
from pipeline.pairs.world.params import WorldParams

PURPOSES = ("calibration", "certify", "labels")
"""What draws problems: the run's own calibration, `make certify`, and the study of labels. They take turns, so they
never share one."""


def further_documents(params: WorldParams, seed: int, purpose: str, count: int, draw: int) -> list[dict[str, str]]:
    """The draw number `draw` (from 1 on) of `count` problems for a purpose.

    No draw repeats a problem of the task's files, of another purpose or of another draw of the same size.

    Raises:
        UserError: the world holds too few different problems.
    """
    turns = len(PURPOSES)
    docs = documents(params, seed, "train", params.task_train + turns * draw * count)[params.task_train :]
    return docs[PURPOSES.index(purpose) :: turns][(draw - 1) * count :]
