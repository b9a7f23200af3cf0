"""Copy the last run's results into Git and renew the page that shows them.

python -m pipeline.report.publish             reports/ -> docs/results/, README.md
python -m pipeline.report.publish table       reports/table/ -> docs/results/table/, docs/rules.md, README.md
python -m pipeline.report.publish seed-2      reports/summary.json -> docs/results/beside/seed-2.json, README.md
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import read_json, read_text, write_atomic, write_json, write_text
from pipeline.common.entry import run
from pipeline.common.paths import REPORTS, RESULTS
from pipeline.report import tables

BEGIN = "<!-- results: begin (written by `make publish`) -->"
END = "<!-- results: end -->"
FILES = ("summary.json", "frontier.csv")
JUDGEMENTS = "judgements.json"
"""What only the large table has."""


def main(name: Annotated[str | None, typer.Argument(help="`table`, or the name of a run to keep.")] = None) -> None:
    readme = Path("README.md")
    if name is None:
        publish(REPORTS, RESULTS, readme)
    elif name == "table":
        publish(REPORTS / "table", RESULTS / "table", Path("docs/rules.md"))
        renew(readme, RESULTS)
    else:
        publish_beside(REPORTS, RESULTS, readme, name)


def publish_beside(reports: Path, results: Path, readme: Path, name: str) -> None:
    """Keep the summary of another run (another seed, another world) beside the published one."""
    write_json(results / "beside" / f"{name}.json", read_json(reports / "summary.json"))
    renew(readme, results)


def content_of(results: Path) -> str:
    """What a page shows of published results: the table, who is right, and one line for each run beside it."""
    summary = read_json(results / "summary.json")
    if (results / JUDGEMENTS).exists():
        table = tables.markdown(summary, {column: column for column in tables.HEADER})
        return f"{table}\n\n{tables.judgements(read_json(results / JUDGEMENTS))}"
    shown = with_rival(summary, results / "table" / "summary.json")
    runs = {path.stem: read_json(path) for path in sorted((results / "beside").glob("*.json"))}
    if not runs:
        return tables.markdown(shown)
    return f"{tables.markdown(shown)}\n\nOther seeds and worlds:\n\n{tables.beside({'published': summary, **runs})}"


def with_rival(summary: dict[str, Any], large: Path) -> dict[str, Any]:
    """The core methods and the best of all rules without training, as the large table has them, if it was published."""
    if not large.exists():
        return summary
    table = read_json(large)
    names = {*summary["methods"], tables.best(table["methods"], gate=False)}
    return {**table, "methods": {name: method for name, method in table["methods"].items() if name in names}}


def publish(reports: Path, results: Path, readme: Path) -> None:
    """Copy summary, frontier and figures from `reports` to `results`; renew the table in the page `readme`.

    Raises:
        UserError: there are no results yet, or the page lost its markers.
    """
    read_json(reports / "summary.json")
    split(read_text(readme))
    for name in (*FILES, *([JUDGEMENTS] if (reports / JUDGEMENTS).exists() else [])):
        write_atomic(results / name, lambda part, name=name: shutil.copyfile(reports / name, part))  # type: ignore[misc]
    write_atomic(results / "figures", lambda part: shutil.copytree(reports / "figures", part))
    renew(readme, results)


def renew(page: Path, results: Path) -> None:
    """Write the published results between the markers of the page."""
    write_text(page, with_table(read_text(page), content_of(results)))


def with_table(readme: str, content: str) -> str:
    """The page with `content` between its markers."""
    before, after = split(readme)
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def table_of(readme: str) -> str:
    """What stands between a page's markers."""
    before, after = split(readme)
    return readme[len(before) + len(BEGIN) : len(readme) - len(after) - len(END)].strip()


def split(readme: str) -> tuple[str, str]:
    """The text in front of the first marker and behind the second."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise UserError(f"The page lacks the lines '{BEGIN}' and '{END}'. Put them back where the table belongs.")
    return readme[: readme.index(BEGIN)], readme[readme.index(END) + len(END) :]


if __name__ == "__main__":
    run(main)
