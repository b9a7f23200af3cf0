"""Copy the last run's results into Git and renew the tables of the page about segments.

    python -m pipeline.studies.segments.publish

Reads reports/segments and benchmarks/results/segments-cpu.json, writes docs/results/segments/{summary.json,figures} and
the part of docs/segments.md between its markers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.files import read_json, read_text
from pipeline.common.code import REPORTING, write_published
from pipeline.report import markers
from pipeline.report.looks import publish_looks
from pipeline.report.origin import check_finished, origin
from pipeline.report.publish import PART
from pipeline.studies.segments.calibrate import operating
from pipeline.studies.segments.figures import draw_all
from pipeline.studies.segments.tables import content

REPORTS, RESULTS, PAGE = Path("reports/segments"), Path("docs/results/segments"), Path("docs/segments.md")
MODULES = tuple(
    f"pipeline.studies.segments.{name}" for name in ("collect", "train", "calibrate", "evaluate", "benchmark")
)
"""What makes the results, besides the stages of the core."""
STUDY = Path("benchmarks/results/segments-cpu.json")


def main() -> None:
    markers.split(read_text(PAGE), PART)
    check_finished("pipeline/studies/segments/dvc.yaml")
    found = summarise(REPORTS, read_json(STUDY) if STUDY.is_file() else None)
    publish_looks(REPORTS / "calibration", RESULTS / "summary.json")
    code = origin((*REPORTING, *MODULES))
    write_published(RESULTS / "summary.json", found, code)
    summary = read_json(RESULTS / "summary.json")  # the page follows the published file, its order included
    draw_all(summary, RESULTS / "figures")
    write_published(RESULTS / "summary.json", found, code, sorted((RESULTS / "figures").iterdir()))
    markers.renew(PAGE, PART, content(summary))


def summarise(reports: Path, study: dict[str, Any] | None) -> dict[str, Any]:
    """Everything that the page shows, in one mapping; the study of lengths and drafts where it was run."""
    benchmark = read_json(reports / "benchmark.json")
    speed = benchmark["decoders"]
    methods = {}
    for path in sorted((reports / "calibration").glob("*.json")):
        found, evaluated = read_json(path), reports / "evaluation" / path.name
        methods[path.stem] = {
            **operating(found),
            "certified": found["certified"] is not None,
            "refusal": found.get("refusal"),
            "test": read_json(evaluated) if evaluated.is_file() else None,
            "speed": speed.pop(f"segments: {path.stem}", None),
        }
    return {
        "agreement": read_json(reports / "agreement.json"),
        "probes": read_json(reports / "probes.json"),
        "reference": benchmark["reference"],
        "speed_prompts": benchmark["prompts"],
        "tokens": speed,
        "methods": methods,
        "study": study,
    }


if __name__ == "__main__":
    run(main)
