"""Copy the last run's results into Git and renew the page that shows them.

python -m pipeline.report.publish             reports/ -> docs/results/, README.md
python -m pipeline.report.publish table       reports/table/ -> docs/results/table/, docs/rules.md, README.md
python -m pipeline.report.publish certify     reports/certify/ -> docs/results/certify/seed-<seed>.json
python -m pipeline.report.publish seed-2      reports/summary.json -> docs/results/beside/seed-2.json, README.md
python -m pipeline.report.publish --again     the same run, timed on another occasion: speeds that cover both

Results that are older than their code are refused, and so are certificates from prompts that were published before with
another choice (docs/results/looks.json).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import read_json, read_text, write_atomic
from pipeline.common.code import KEY, REPORTING, write_published
from pipeline.common.entry import run
from pipeline.common.paths import REPORTS, RESULTS, STUDIES
from pipeline.params import read_params
from pipeline.report import headline, leaders, markers, tables
from pipeline.report.figures import redraw_speed
from pipeline.report.looks import publish_looks
from pipeline.report.origin import check_finished, line, origin
from pipeline.speed.occasions import joined

PART = "results"
"""The part of a page that shows published results."""
FILES = ("frontier.csv",)
MODULES = {
    "table": tuple(
        f"pipeline.studies.table.{name}" for name in ("spans", "judge", "pair_counts", "agreement", "report")
    ),
    "certify": ("pipeline.studies.certify.certify",),
}
"""What makes the results of a study, besides the stages of the core."""
SEEDS = "seeds.json"
"""What `make seeds` found."""
JUDGEMENTS = "judgements.json"
"""What only the large table has."""


def main(
    name: Annotated[str | None, typer.Argument(help="`table`, or the name of a run to keep.")] = None,
    again: Annotated[bool, typer.Option(help="Timed again: widen the published speeds until they cover both.")] = False,
) -> None:
    readme, study = Path("README.md"), name if name in ("table", "certify") else None
    if again and name not in (None, "table"):
        raise UserError(f"Only the core and `table` are published again, not '{name}'. Leave out one of the two.")
    check_finished((STUDIES / study / "dvc.yaml" if study else Path("dvc.yaml")).as_posix())
    code = origin(sorted({*REPORTING, *MODULES.get(study or "", ())}))
    if again:
        publish_again(REPORTS / (name or ""), RESULTS / (name or ""), code)
        if name == "table":
            renew(Path("docs/rules.md"), RESULTS / "table")
        renew(readme, RESULTS)
    elif name is None:
        publish_looks(REPORTS / "calibration", RESULTS / "summary.json")
        publish(REPORTS, RESULTS, readme, code)
    elif name == "table":
        publish_looks(REPORTS / "table/calibration", RESULTS / "table/summary.json")
        publish(REPORTS / "table", RESULTS / "table", Path("docs/rules.md"), code)
        renew(readme, RESULTS)
    elif name == "certify":
        publish_certify(REPORTS / "certify", RESULTS / f"certify/seed-{read_params().seed}.json", code)
    else:
        publish_looks(REPORTS / "calibration", RESULTS / f"beside/{name}.json")
        publish_beside(REPORTS, RESULTS, readme, name, code)


def publish_again(reports: Path, results: Path, code: dict[str, Any]) -> None:
    """Widen the published speeds of a run until they cover those of `reports`, where the same run was timed again.

    Raises:
        UserError: the published results are of another run, or of other code.
    """
    summary, published = read_json(reports / "summary.json"), read_json(results / "summary.json")
    if without_speed(summary) != without_speed(published):
        raise UserError(
            f"{results / 'summary.json'} holds another run than {reports}, so that their speeds do not belong "
            "together. Publish this run without --again."
        )
    if fingerprint_of(published) != fingerprint_of(code):
        raise UserError(
            f"{results / 'summary.json'} was made by other code than the present. Publish this run without --again, "
            "and then time it once more."
        )
    if published.get("timed", {}).get("blocks") != summary.get("timed", {}).get("blocks"):
        raise UserError(
            "Development prompts chose another K of transformers' speculation than for the published speeds, so that "
            "these do not belong together. Publish this run without --again, and then time it once more."
        )
    if (differing := other_measurement(published.get("timed", {}), summary.get("timed", {}))) is not None:
        raise UserError(
            f"The published speeds were measured with another {differing}, so that these do not belong together. "
            "Publish this run without --again, and then time it once more."
        )
    before = published.get("occasions", [speeds(published)])
    if speeds(summary) in before:
        raise UserError(
            "These speeds are published already. Run the stage `benchmark` again, and then publish --again."
        )
    occasions = [*before, speeds(summary)]
    methods = {
        name: {**method, "speed": joined([one[name] for one in occasions])}
        for name, method in summary["methods"].items()
    }
    found = {**summary, "methods": methods, "occasions": occasions}
    redraw_speed(found, results / "figures")
    write_published(results / "summary.json", found, code, shown_in(results))


def other_measurement(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """In what two measurements of speeds differ besides their hour; older results do not say their machine."""
    if one.get("n") != other.get("n"):
        return "number of prompts"
    machines = one.get("machine"), other.get("machine")
    return None if None in machines or machines[0] == machines[1] else "machine, library or number of threads"


def fingerprint_of(content: dict[str, Any]) -> str | None:
    """The fingerprint of the code behind published content; None where it names none."""
    found: str | None = content.get(KEY, {}).get("fingerprint")
    return found


def speeds(summary: dict[str, Any]) -> dict[str, Any]:
    """The speeds of one occasion, by method."""
    return {name: method["speed"] for name, method in summary["methods"].items()}


def without_speed(summary: dict[str, Any]) -> dict[str, Any]:
    """What a run found besides speeds, by method."""
    return {
        name: {key: value for key, value in method.items() if key != "speed"}
        for name, method in summary["methods"].items()
    }


def publish_beside(reports: Path, results: Path, readme: Path, name: str, code: dict[str, Any]) -> None:
    """Keep the summary of another run (another seed, another world) beside the published one."""
    write_published(results / "beside" / f"{name}.json", read_json(reports / "summary.json"), code)
    renew(readme, results)


def publish_certify(reports: Path, file: Path, code: dict[str, Any]) -> None:
    """Copy the summary of `make certify`, with the code that made it."""
    publish_looks(reports, file)
    write_published(file, read_json(reports / "summary.json"), code)


def content_of(results: Path) -> str:
    """What a page shows of published results: the table, who is right, and one line for each run beside it."""
    summary = read_json(results / "summary.json")
    if (results / JUDGEMENTS).exists():
        table = tables.markdown(summary, {column: column for column in tables.HEADER})
        told = tables.judgements(read_json(results / JUDGEMENTS))
        return f"{table}\n\n{tables.lead(summary)} {line(summary)}\n\n{told}"
    shown = with_rival(summary, results / "table" / "summary.json")
    about = f"{tables.lead(lead_of(summary, results / 'table' / 'summary.json'))} {line(shown)}"
    if (results / SEEDS).exists():
        seeds = read_json(results / SEEDS)
        about = f"{tables.of_seeds(seeds)} {line(seeds)}\n\n{about}"
    runs = {path.stem: read_json(path) for path in sorted((results / "beside").glob("*.json"))}
    if not runs:
        return f"{tables.markdown(shown)}\n\n{about}"
    others = tables.beside({"published": summary, **runs})
    return f"{tables.markdown(shown)}\n\n{about}\n\nOther seeds and worlds:\n\n{others}"


def with_rival(summary: dict[str, Any], large: Path) -> dict[str, Any]:
    """The core methods and the best of all rules without training, as the large table has them, if it was published."""
    if not large.exists():
        return summary
    table = read_json(large)
    names = {*summary["methods"], leaders.best(table["methods"], gate=False)}
    return {**table, "methods": {name: method for name, method in table["methods"].items() if name in names}}


def lead_of(summary: dict[str, Any], large: Path) -> dict[str, Any]:
    """The summary that knows all rules: the large table's, if it was published."""
    return read_json(large) if large.exists() else summary


def publish(reports: Path, results: Path, readme: Path, code: dict[str, Any]) -> None:
    """Copy summary, frontier and figures from `reports` to `results`; renew the table in the page `readme`.

    `code` is what `pipeline.report.origin.origin` says about the code, for the JSON files.

    Raises:
        UserError: there are no results yet, or the page lost its markers.
    """
    markers.split(read_text(readme), PART)
    copy_results(reports, results, code)
    renew(readme, results)


def copy_results(reports: Path, results: Path, code: dict[str, Any]) -> None:
    """Copy summary, frontier and figures; the arguments are those of `publish`.

    Raises:
        UserError: there are no results yet.
    """
    summary = read_json(reports / "summary.json")
    if (reports / JUDGEMENTS).exists():
        write_published(results / JUDGEMENTS, read_json(reports / JUDGEMENTS), code)
    for name in FILES:
        write_atomic(results / name, lambda part, name=name: shutil.copyfile(reports / name, part))  # type: ignore[misc]
    write_atomic(results / "figures", lambda part: shutil.copytree(reports / "figures", part))
    write_published(results / "summary.json", summary, code, shown_in(results))


def shown_in(results: Path) -> list[Path]:
    """The published tables and figures of a run."""
    return [
        path
        for path in [*(results / name for name in FILES), *sorted((results / "figures").glob("*"))]
        if path.is_file()
    ]


def renew(page: Path, results: Path) -> None:
    """Write the published results between the comments of the page, and the headline where it has comments for one."""
    markers.renew(page, PART, content_of(results))
    if markers.begin(headline.PART) in read_text(page):
        markers.renew(page, headline.PART, headline.headline(results))


if __name__ == "__main__":
    run(main)
