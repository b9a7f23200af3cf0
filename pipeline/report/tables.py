"""The results table, as Markdown for the README and as HTML for the report from the same cells; the
HTML page; the model card of an exported gate."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gistgate.core.files import read_json, read_text
from gistgate.core.utils import printable
from gistgate.coverage.certificate import Certificate
from gistgate.demo.page import TEMPLATES as SHARED
from gistgate.demo.page import flat, render
from gistgate.gate import GateConfig
from pipeline.operating import at_budget
from pipeline.paths import TASKS, evaluation_folder
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
    "vs plain": "speed to plain",
    "per token": "speed per token to plain",
    "vs strict": None,
    "vs static": "speed to `generate`, static cache, compiled",
    "vs assisted": "speed to assisted",
    "vs lookup": "speed to prompt lookup",
    "capped": "capped (strict), %",
    "tokens": "tokens (strict)",
    "adversarial": "adversarial: differing, opened, length, capped",
}
"""Columns of the report's table, and what the README's table calls those that it has too."""
SPEEDS = ("vs_plain", "per_token", "vs_strict", "vs_static", "vs_assisted", "vs_lookup")
"""Speeds of a method, in the order of their columns."""


def rows(summary: Summary) -> list[tuple[str, ...]]:
    """One tuple of texts per method."""
    return [
        cells(name, method, summary["headline_budget"])
        for name, method in summary["methods"].items()
    ]


def cells(name: str, method: dict[str, Any], budget: float) -> tuple[str, ...]:
    """One line of the table: shares in per cent, differences in points."""
    bound = method["certified_bound"]
    change = method["accuracy_difference"]
    return (
        name,
        str(method["block"]),
        UNKNOWN if method["knob"] is None else f"{method['knob']:g}",
        "refused" if bound is None else percent(bound),
        percent(method["accuracy"]),
        f"{100 * change['mean']:+.1f} [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]",
        f"{method['mean_accepted_length']:.2f}",
        f"{method['loose_per_100']:.1f}",
        *(speed(method["speed"].get(key)) for key in SPEEDS),
        *lengths(method, budget),
        adversarial(method["adversarial"]),
    )


def lengths(method: dict[str, Any], budget: float) -> tuple[str, str]:
    """Share of capped answers and mean length on the calibration prompts, strict decoding in
    brackets.
    """
    line = at_budget(method["certificates"], budget)
    if line is None or "capped" not in line:
        return UNKNOWN, UNKNOWN
    shown = "" if method["certified_bound"] is not None else "strict_"
    capped = f"{percent(line[f'{shown}capped'])} ({percent(line['strict_capped'])})"
    return capped, f"{line[f'{shown}mean_tokens']:.1f} ({line['strict_mean_tokens']:.1f})"


def adversarial(found: dict[str, Any] | None) -> str:
    """Shares of answers that differ and that opened, their length to that of strict ones, and the
    share of cut ones.
    """
    if found is None:
        return UNKNOWN
    differing, opened, capped = (
        f"{percent(found[key] / found['n'])} %" for key in ("differing", "opened", "capped")
    )
    return f"{differing}, {opened}, {found['tokens'] / found['strict_tokens']:.2f}, {capped}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def speed(ratio: dict[str, float] | None) -> str:
    """A ratio with its interval; the unknown one of a baseline that cannot run."""
    return (
        UNKNOWN
        if ratio is None
        else f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    )


def markdown(summary: Summary) -> str:
    """A caption and the README's table, without columns of which nothing is known and without
    padding.
    """
    found = rows(summary)
    columns = [
        (place, title)
        for place, title in enumerate(COLUMNS.values())
        if title is not None and any(row[place] != UNKNOWN for row in found)
    ]
    lines = [[title for _, title in columns], ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[row[place] for place, _ in columns] for row in found]
    return f"{caption(summary)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def caption(summary: Summary) -> str:
    """Which run the table shows, and what has to be known of it."""
    methods = summary["methods"]
    looks = summary["looks"]
    strict = methods.get("exact", {}).get("accuracy", summary["plain"]["accuracy"])
    cut = ", ".join(f"{name} {one['cut']}" for name, one in methods.items() if one["cut"])
    other_k = [
        f"{name} {one['timed_block']}"
        for name, one in methods.items()
        if one["timed_block"] != one["block"]
    ]
    parts = [
        (
            f"Pair `{summary['pair']}`, task `{summary['task']}`, seed {summary['seed']},"
            f" {next(iter(methods.values()))['n']} test prompts, budget"
            f" {percent(summary['headline_budget'])} points; plain decoding answers"
            f" {percent(summary['plain']['accuracy'])} %."
        ),
        (
            "The target solves no larger share than the budget, so that the bounds promise nothing."
            if strict <= summary["headline_budget"]
            else ""
        ),
        f"Test answers cut at the limit: {cut}." if cut else "",
        f"Each bound is one of {looks} planned looks, which divide the error." if looks > 1 else "",
        timed(summary["timed"]),
        (
            "Strict decoding and methods without a certificate are timed at the K of strict"
            f" decoding: {', '.join(other_k)}."
            if other_k
            else ""
        ),
    ]
    return " ".join(filter(None, parts))


def timed(found: dict[str, Any]) -> str:
    """On how many prompts speeds were measured and at which K transformers speculated."""
    names = {"transformers_assisted": "assisted generation", "transformers_lookup": "prompt lookup"}
    said = [
        f"{names[name]} {f'at K = {k}' if k else 'with its defaults'}"
        for name, k in found["blocks"].items()
    ]
    where = f", as {found['chosen_on']} development prompts chose" if found["chosen_on"] else ""
    lacking = [spoken for name, spoken in names.items() if name in (found["failed"] or {})]
    missing = f" With this pair transformers has no {' and no '.join(lacking)}." if lacking else ""
    speculation = f"; {', '.join(said)}{where}" if said else ""
    return f"Speeds are those of {found['n']} test prompts{speculation}.{missing}"


TEMPLATES = Path(__file__).with_name("templates")


def page(name: str, **content: Any) -> str:
    """The page of the template `<name>.html.j2`."""
    styles = (SHARED / "page.css", TEMPLATES / "report.css")
    return render(
        TEMPLATES / f"{name}.html.j2",
        scripts=(),
        styles=styles,
        beside=(TEMPLATES,),
        pct=percent,
        **content,
    )


def provenance(results: Results) -> dict[str, dict[str, str]]:
    """For each calibrated method what its certificates depend on, by dotted name."""
    proofs = {
        name: found["proof"] for name, found in results.calibration.items() if found.get("proof")
    }
    return {
        name: flat({"scope": proof["scope"], "prompts": proof["source"]})
        for name, proof in proofs.items()
    }


def evaluations(method: str) -> dict[str, dict[str, Any]]:
    """Summaries of the test prompts by name, the strict reference first; empty where they were not
    evaluated.
    """
    paths = {name: evaluation_folder(name) / "summary.json" for name in (STRICT, method)}
    return (
        {name: read_json(path) for name, path in paths.items()}
        if all(map(Path.exists, paths.values()))
        else {}
    )


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
        partners={"target": config.target, "draft": config.draft},
        task_options=task_options(config.labels.get("task")),
        percent=percent,
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
    return templates.get_template(f"{name}.md.j2").render(**content)


def task_options(name: str | None) -> str:
    """Options by which lm-eval finds a task of this project and may run its programs; nothing for
    its own tasks.
    """
    file = TASKS / f"{name}.yaml"
    if not file.is_file():
        return ""
    unsafe = re.search(r"(?m)^unsafe_code:\s*true\b", read_text(file))
    return f"--include_path {TASKS.as_posix()}{' --confirm_run_unsafe_code' if unsafe else ''}"
