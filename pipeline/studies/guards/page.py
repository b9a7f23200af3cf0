"""One page about shadow runs and about prompts unlike those of the calibration.

python -m pipeline.studies.guards.page      reports/{shadow,domain}.json, whichever exist -> reports/guards.html
"""

from __future__ import annotations

from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import read_json, write_text
from pipeline.common.entry import run
from pipeline.common.paths import REPORTS
from pipeline.report.page import page


def main() -> None:
    files = {name: REPORTS / f"{name}.json" for name in ("shadow", "domain")}
    found = {name: read_json(path) if path.exists() else None for name, path in files.items()}
    if not any(found.values()):
        raise UserError("There is nothing to show. Run `python -m pipeline.studies.guards.shadow` first.")
    write_text(REPORTS / "guards.html", page("page", Path(__file__).parent, **found))


if __name__ == "__main__":
    run(main)
