"""The results table, as Markdown for the README and as HTML for the report from the same cells; the
HTML page; the model card of an exported gate.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gistgate.core.files import read_json, read_text
from gistgate.core.utils import printable
from gistgate.coverage.certificate import Certificate
from gistgate.gate import GateConfig
from gistgate.measure.trace_page import TEMPLATES as SHARED
from gistgate.measure.trace_page import render, visible
from pipeline.operating import at_budget
from pipeline.paths import TASKS, VOCABULARY, evaluation_folder
from pipeline.report.summary import STRICT, Results, Summary

UNKNOWN = "–"
COLUMNS = {
    "method": "method",
    "K": None,
    "knob": None,
    "bound": "certified bound, points",
    "accuracy": None,
    "difference": "accuracy difference, points",
    "tau": "mean accepted length",
    "loose/100": None,
    "seconds": "seconds per answer",
    "vs plain": "speed to plain",
    "per token": "speed per token to plain",
    "vs strict": "speed to strict",
    "per token vs strict": "speed per token to strict",
    "vs static": "speed to `generate`, static cache, compiled",
    "vs assisted": "speed to assisted",
    "vs lookup": "speed to prompt lookup",
    "vs llama.cpp": "speed to llama.cpp, plain",
    "capped": "capped (strict), %",
    "tokens": "tokens (strict)",
    "adversarial": "adversarial: differing, opened, length, capped",
}
"""Columns of the report's table, and what the README's table calls those that it has too."""
SPEEDS = (
    *("vs_plain", "per_token", "vs_strict", "per_token_strict"),
    *("vs_static", "vs_assisted", "vs_lookup", "vs_llama_cpp"),
)
"""Speeds of a method, in the order of their columns."""
BASELINES = {
    "plain": "plain",
    "llama_cpp": "llama.cpp, plain",
    "transformers_generate": "transformers",
    "transformers_static": "transformers, static cache, compiled",
    "transformers_assisted": "assisted generation of transformers",
    "transformers_lookup": "prompt lookup of transformers",
}
"""Baselines that have a row, and how they are called; strict decoding is a method."""


def rows(summary: Summary) -> list[tuple[str, ...]]:
    """One tuple of texts for each baseline and method."""
    lines = []
    for key, name in BASELINES.items():
        baseline = summary["baselines"].get(key)
        if baseline is not None or key in (summary["timed"]["failed"] or {}):
            lines.append(baseline_cells(name, baseline or {"block": 0, "speed": {}}))
    return lines + [cells(name, method) for name, method in summary["methods"].items()]


def baseline_cells(name: str, baseline: dict[str, Any]) -> tuple[str, ...]:
    """The line of a baseline, of which seconds alone are measured."""
    values = dict.fromkeys(COLUMNS, UNKNOWN) | {"method": name, "K": str(baseline["block"])}
    places = list(COLUMNS).index("seconds")
    texts = speed_cells(baseline["speed"])
    values |= dict(zip(list(COLUMNS)[places:], texts))
    return tuple(values.values())


def speed_cells(speeds: dict[str, Any]) -> tuple[str, ...]:
    """Seconds of an answer, and speeds with their intervals; unknown where nothing was timed."""
    seconds = f"{speeds['seconds']:.3g}" if speeds else UNKNOWN
    return (seconds, *(speed(speeds.get(key)) for key in SPEEDS))


def cells(name: str, method: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table: shares in per cent, differences in points."""
    bound = method["certified_bound"]
    change = {key: f"{100 * value:+.1f}" for key, value in method["accuracy_difference"].items()}
    return (
        name,
        str(method["block"]),
        UNKNOWN if method["knob"] is None else f"{method['knob']:g}",
        "refused" if bound is None else percent(bound),
        percent(method["accuracy"]),
        f"{change['mean']} [{change['low']}, {change['high']}]",
        f"{method['mean_accepted_length']:.2f}",
        f"{method['loose_per_100']:.1f}",
        *speed_cells(method["speed"]),
        *lengths(method),
        adversarial(method["adversarial"]),
    )


def lengths(method: dict[str, Any]) -> tuple[str, str]:
    """Share of capped answers and mean length on the calibration prompts, strict decoding in
    brackets.
    """
    entry = at_budget(method["certificates"], method["budget"])
    if entry is None or "capped" not in entry:
        return UNKNOWN, UNKNOWN
    strict = (percent(entry["strict_capped"]), f"{entry['strict_mean_tokens']:.1f}")
    loose = (percent(entry["capped"]), f"{entry['mean_tokens']:.1f}")
    if method["certified_bound"] is None:  # it runs strictly
        loose = strict
    return f"{loose[0]} ({strict[0]})", f"{loose[1]} ({strict[1]})"


def adversarial(counts: dict[str, Any] | None) -> str:
    """Shares of answers that differ and that opened, their length to that of strict ones, and the
    share of cut ones.
    """
    if counts is None:
        return UNKNOWN
    differing, opened, capped = (
        f"{percent(counts[key] / counts['n'])} %" for key in ("differing", "opened", "capped")
    )
    return f"{differing}, {opened}, {counts['tokens'] / counts['strict_tokens']:.2f}, {capped}"


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.1f}"


def speed(ratio: dict[str, float] | None) -> str:
    """A ratio with its interval; the unknown one of a baseline that cannot run."""
    if ratio is None:
        return UNKNOWN
    return f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def markdown(summary: Summary) -> str:
    """A caption, and the README's table without columns of which nothing is measured."""
    caption = markdown_page("caption", summary=summary)
    columns: list[list[str]] = []
    for title, *cells in zip(COLUMNS.values(), *rows(summary)):
        if title is not None and set(cells) != {UNKNOWN}:
            columns.append([title, "---:" if columns else "---", *cells])
    table = [f"| {' | '.join(line)} |" for line in zip(*columns)]
    return "\n".join([" ".join(caption.split()), "", *table])


TEMPLATES = Path(__file__).with_name("templates")


def page(name: str, **content: Any) -> str:
    """The page of the template `<name>.html.j2`."""
    return render(
        TEMPLATES / f"{name}.html.j2",
        styles=(SHARED / "page.css", TEMPLATES / "report.css"),
        pct=percent,
        **content,
    )


def provenance(results: Results) -> dict[str, dict[str, str]]:
    """For each calibrated method what its certificates depend on, by dotted name."""
    facts = {}
    for name, calibration in results.calibration.items():
        proof = calibration.get("proof")
        if proof:
            facts[name] = flat({"scope": proof["scope"], "prompts": proof["source"]})
    return facts


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as one, with dotted names; lists are written as JSON."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows |= flat(value, f"{name}.")
        elif isinstance(value, str):
            rows[name] = visible(value)
        else:
            rows[name] = visible(json.dumps(value, ensure_ascii=False, default=str))
    return rows


def evaluations(method: str) -> dict[str, dict[str, Any]]:
    """Summaries of the test prompts by name, the strict reference first; empty where they were not
    evaluated.
    """
    paths = {name: evaluation_folder(name) / "summary.json" for name in (STRICT, method)}
    if not all(map(Path.exists, paths.values())):
        return {}
    return {name: read_json(path) for name, path in paths.items()}


def plain_markdown(value: Any) -> Any:
    """A text that begins no tag, line or code of its own in Markdown; other values unchanged."""
    if not isinstance(value, str):
        return value
    return printable(" ".join(value.split())).replace("<", "&lt;").replace("`", "'")


def card(
    config: GateConfig,
    certificate: Certificate,
    report: dict[str, Any],
    evaluated: dict[str, dict[str, Any]],
) -> str:
    """The text of README.md, from the calibration `report` of a method and what `evaluations`
    returned.
    """
    return markdown_page(
        "card",
        gate=config,
        certificate=certificate,
        report=report,
        evaluated=evaluated,
        splits={"development": report["development"], "calibration": report["settings"]},
        lighter=config.draft.quantisation if config.draft else None,
        vocabulary=VOCABULARY if config.draft and config.draft.draft_vocabulary else None,
        partners={"target": config.target, "draft": config.draft},
        task_options=task_options(config.labels.get("task")),
    )


def markdown_page(name: str, **content: Any) -> str:
    """The template `<name>.md.j2`, filled."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
        finalize=plain_markdown,
    )
    return templates.get_template(f"{name}.md.j2").render(content, percent=percent)


def task_options(name: str | None) -> str:
    """Options by which lm-eval finds a task of this project and may run its programs; nothing for
    its own tasks.
    """
    file = TASKS / f"{name}.yaml"
    if not file.is_file():
        return ""
    options = f"--include_path {TASKS.as_posix()}"
    is_unsafe = re.search(r"(?m)^unsafe_code:\s*true\b", read_text(file))
    return f"{options} --confirm_run_unsafe_code" if is_unsafe else options
