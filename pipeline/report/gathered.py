"""Results that grow run by run, each run in a copy of the project.

A recorded run stands as long as it was made by the present parameters and the present code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import fingerprint
from pipeline.common.code import code_fingerprint
from pipeline.common.paths import PARAMS
from pipeline.common.yaml_file import read_yaml
from pipeline.smoke import ROOT, copy_project, merged

Row = Mapping[str, Any]
DRAWS = 100
"""Draws of calibration prompts that one draw of params.yaml stands for here: more than there are kinds of runs."""
MARK = "parameters"
"""Entry of a recorded run that holds its mark."""


def own_draw(place: int) -> int:
    """The draw of calibration prompts for one kind of runs, from 0 to DRAWS - 1, which nothing else judges.

    The ledger of looks knows a pair by its name, which the pairs of all these runs share.
    """
    return DRAWS * int(read_yaml(ROOT / PARAMS)["prompts"]["draw"]) + place


def mark(changes: dict[str, Any], modules: Sequence[str]) -> str:
    """Fingerprint of a run: params.yaml with these changes (seed and draw included), and the code of these modules."""
    return fingerprint(merged(read_yaml(ROOT / PARAMS), changes), code_fingerprint(*modules))


def kept(rows: Mapping[str, Row], mark_of: Callable[[str], str]) -> dict[str, Row]:
    """The recorded runs that stand; a line names the others.

    Args:
        rows: recorded runs by name.
        mark_of: the mark that a run of this name would have now.
    """
    stand = {name: row for name, row in rows.items() if row.get(MARK) == mark_of(name)}
    if others := sorted(rows.keys() - stand.keys()):
        print(f"recorded with other parameters or other code, left out: {', '.join(others)}", flush=True)
    return stand


def copy(place: Path, changes: dict[str, Any], modules: Sequence[str]) -> None:
    """Copy the project with changed parameters, over an unfinished copy if there is one.

    Raises:
        UserError: the sources were changed since this process began, so that its runs would be of different code.
    """
    place.mkdir(parents=True, exist_ok=True)
    copy_project(place, changes=((PARAMS, changes),))
    if code_fingerprint(*modules, root=place.resolve()) != code_fingerprint(*modules):
        raise UserError(
            f"The sources were changed since this command began, so {place} holds other code than the runs before it. "
            "Start the command again."
        )
