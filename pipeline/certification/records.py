"""Outcomes of every prompt at every tested setting, as a table from which bounds can be computed again."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gistgate.certificates.fixed_sequence import Tested
from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from gistgate.files import read_text, write_text
from gistgate.integrations.lm_eval.prompts import Prompt

COLUMNS = ("setting", "id", "strict", "loose", "tokens", "capped")
"""Place in the sequence, prompt, scores of strict and loose decoding in [0, 1], length of the loose answer in tokens,
and 1 where the answer reached its longest length."""


def write_records(path: Path, tested: Sequence[Tested], prompts: Sequence[Prompt], strict: Sequence[float]) -> None:
    """Write the outcomes of a sequence on the calibration prompts, whose strict scores are `strict [N]`."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for place, one in enumerate(tested):
        differences = one.decoded.differences.tolist()  # of the first prompts alone where the setting was left early
        seen = slice(len(differences))
        rows = zip(prompts[seen], strict[seen], differences, one.decoded.statistics, strict=True)
        for prompt, score, difference, counted in rows:
            capped = int(counted.tokens >= prompt["max_new_tokens"])
            table.writerow([place, prompt["id"], f"{score:.12g}", f"{score - difference:.12g}", counted.tokens, capped])
    write_text(path, text.getvalue())


def read_differences(path: Path) -> Array:
    """d = strict - loose score of every tested setting and prompt [S, N], from strict to loose.

    Raises:
        UserError: the file is missing, or its settings have different prompts, as where one was left early.
    """
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    places = sorted({int(row["setting"]) for row in rows})
    found = [[row for row in rows if int(row["setting"]) == place] for place in places]
    if not found or any([row["id"] for row in one] != [row["id"] for row in found[0]] for one in found):
        raise UserError(
            f"{path} does not hold the same prompts for every setting: with `calibrate.stop` at lost or clear, a "
            "setting is left early. Set it to planned and run the stage `calibrate` on fresh prompts."
        )
    return np.array([[float(row["strict"]) - float(row["loose"]) for row in one] for one in found])
