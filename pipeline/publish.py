"""Copy the last run's results into Git and renew the README's table.

python -m pipeline.publish      reports/ -> docs/results/, README.md
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import read_json, read_text, write_atomic, write_text
from pipeline import table
from pipeline.stage import run

BEGIN = "<!-- results: begin (written by `make publish`) -->"
END = "<!-- results: end -->"
FILES = ("summary.json", "frontier.csv")


def main() -> None:
    publish(Path("reports"), Path("docs/results"), Path("README.md"))


def publish(reports: Path, results: Path, readme: Path) -> None:
    """Copy summary, frontier and figures from `reports` to `results`; renew the table in `readme`.

    Raises:
        UserError: there are no results yet, or the README lost its markers.
    """
    summary = read_json(reports / "summary.json")
    text = with_table(read_text(readme), table.markdown(summary))
    for name in FILES:
        write_atomic(results / name, lambda part, name=name: shutil.copyfile(reports / name, part))  # type: ignore[misc]
    write_atomic(results / "figures", lambda part: shutil.copytree(reports / "figures", part))
    write_text(readme, text)


def with_table(readme: str, content: str) -> str:
    """The README with `content` between its markers."""
    before, after = split(readme)
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def table_of(readme: str) -> str:
    """What stands between the README's markers."""
    before, after = split(readme)
    return readme[len(before) + len(BEGIN) : len(readme) - len(after) - len(END)].strip()


def split(readme: str) -> tuple[str, str]:
    """The text in front of the first marker and behind the second."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise UserError(f"README.md lacks the lines '{BEGIN}' and '{END}'. Put them back where the table belongs.")
    return readme[: readme.index(BEGIN)], readme[readme.index(END) + len(END) :]


if __name__ == "__main__":
    run(main)
