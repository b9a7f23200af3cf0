"""The results table, once as Markdown for the README and once as HTML for the report, from the same cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gistgate.core.request import Statistics
from gistgate.demo import page as rendering
from gistgate.demo.page import MEANINGS, STRICT, Run, flat, render, side_by_side, visible
from gistgate.measure.trace import TracedToken
from gistgate.rules import RULES, meant
from pipeline.report.summary import Results

# ---- Markdown tables, without the padding that libraries add: a changed cell changes one line of a published page.


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """A Markdown table; `numbers` aligns all columns but the first to the right."""
    rule = ["---", *["---:" if numbers else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


HEADER = (
    "method",
    "K",
    "knob",
    "bound",
    "accuracy",
    "difference",
    "tau",
    "loose/100",
    "vs plain",
    "per token",
    "vs strict",
    "vs static",
    "vs assisted",
    "vs lookup",
    "capped",
    "tokens",
    "adversarial",
)
SHORT = {
    "method": "method",
    "bound": "certified bound, points",
    "difference": "accuracy difference, points",
    "tau": "mean accepted length",
    "vs plain": "speed to plain",
    "per token": "speed per token to plain",
    "vs static": "speed to `generate`, static cache, compiled",
    "vs assisted": "speed to assisted",
    "vs lookup": "speed to prompt lookup",
    "capped": "capped (strict), %",
    "tokens": "tokens (strict)",
    "adversarial": "adversarial: differing, opened, length, capped",
}
"""Columns of the README's table, with the names that they have there."""


UNKNOWN = "–"
SPEEDS = ("vs_plain", "per_token", "vs_strict", "vs_static", "vs_assisted", "vs_lookup")
"""Speeds of a method, in the order of their columns."""


def rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """One tuple of texts per method."""
    return [cells(name, method, summary["headline_budget"]) for name, method in summary["methods"].items()]


def cells(name: str, method: dict[str, Any], budget: float) -> tuple[str, ...]:
    """One line of the table: shares in per cent, differences in points."""
    bound, change = method["certified_bound"], method["accuracy_difference"]
    return (
        name,
        str(method["block"]),
        UNKNOWN if method["knob"] is None else f"{method['knob']:g}",
        "not certified" if bound is None else f"{100 * bound:.1f}",
        percent(method["accuracy"]),
        f"{100 * change['mean']:+.1f} [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]",
        f"{method['mean_accepted_length']:.2f}",
        f"{method['loose_per_100']:.1f}",
        *(speed(method["speed"].get(key)) for key in SPEEDS),
        *lengths(method, budget),
        adversarial(method),
    )


def lengths(method: dict[str, Any], budget: float) -> tuple[str, str]:
    """Share of capped answers and mean length on the calibration prompts, strict decoding in brackets.

    A method without a certificate runs strictly, so that the answers of its refused setting say nothing about it.
    """
    line: dict[str, Any] = next(
        (one for key, one in method.get("certificates", {}).items() if float(key) == budget), {}
    )
    if "capped" not in line:
        return UNKNOWN, UNKNOWN
    shown = "" if method["certified_bound"] is not None else "strict_"
    capped = f"{percent(line[f'{shown}capped'])} ({percent(line['strict_capped'])})"
    return capped, f"{line[f'{shown}mean_tokens']:.1f} ({line['strict_mean_tokens']:.1f})"


def adversarial(method: dict[str, Any]) -> str:
    """Of the answers to adversarial prompts those that differ from strict ones, those that are open where strict ones
    are shut, their length as a multiple of the strict length, and those that the limit cut."""
    found = method.get("adversarial")
    if found is None:
        return UNKNOWN
    differing, opened, capped = (f"{percent(found[key] / found['n'])} %" for key in ("differing", "opened", "capped"))
    return f"{differing}, {opened}, {found['tokens'] / found['strict_tokens']:.2f}, {capped}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def speed(ratio: dict[str, float] | None) -> str:
    """A ratio with its interval; the unknown one of a baseline that cannot run."""
    if ratio is None:
        return UNKNOWN
    return f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def markdown(summary: dict[str, Any], columns: dict[str, str] = SHORT) -> str:
    """A caption and the table with these columns (a name of HEADER -> its title)."""
    found = rows(summary)
    chosen = [
        (HEADER.index(column), title)
        for column, title in columns.items()
        if any(row[HEADER.index(column)] != UNKNOWN for row in found)  # results older than a column have none of it
    ]
    shown = [[row[index] for index, _ in chosen] for row in found]
    return f"{caption(summary)}\n\n{table([title for _, title in chosen], shown, numbers=True)}"


def caption(summary: dict[str, Any]) -> str:
    """Which run the table shows."""
    n, looks = next(iter(summary["methods"].values()))["n"], summary.get("looks", 1)
    occasions = len(summary.get("occasions", [None]))
    return (
        f"Pair `{summary['pair']}`, task `{summary['task']}`, seed {summary['seed']}, {n} test prompts, budget "
        f"{percent(summary['headline_budget'])} points; plain decoding answers "
        f"{percent(summary['plain']['accuracy'])} %.{hollow(summary)}{cut(summary['methods'])}"
        + (f" Each bound is one of {looks} planned looks, which divide the error." if looks > 1 else "")
        + timed(summary.get("timed"))
        + at_own_k(summary["methods"])
        + (f" Speeds were measured on {occasions} occasions; intervals cover each of them." if occasions > 1 else "")
    )


def hollow(summary: dict[str, Any]) -> str:
    """A sentence where a method could lose every answer within the budget; nothing elsewhere."""
    strict = summary["methods"].get("exact", {}).get("accuracy", summary["plain"]["accuracy"])
    if strict > summary["headline_budget"]:
        return ""
    return " The target solves no larger share than the budget, so that the bounds promise nothing."


def at_own_k(methods: dict[str, dict[str, Any]]) -> str:
    """Which methods were timed at another K than they were judged at; nothing for older results."""
    timed = {name: one["timed_block"] for name, one in methods.items() if "timed_block" in one}
    listed = ", ".join(f"{name} {block}" for name, block in timed.items() if block != methods[name]["block"])
    if not listed:
        return ""
    return f" Strict decoding and methods without a certificate are timed at the K of strict decoding: {listed}."


def timed(found: dict[str, Any] | None) -> str:
    """On how many prompts speeds were measured and at which K transformers speculated; nothing for older results."""
    if found is None:
        return ""
    names = {"transformers_assisted": "assisted generation", "transformers_lookup": "prompt lookup"}
    said = [f"{names[name]} {f'at K = {k}' if k else 'with its defaults'}" for name, k in found["blocks"].items()]
    where = f", as {found['chosen_on']} development prompts chose" if found["chosen_on"] else ""
    lacking = [spoken for name, spoken in names.items() if name in (found.get("failed") or {})]
    missing = f" With this pair transformers has no {' and no '.join(lacking)}." if lacking else ""
    told = f" Speeds are those of {found['n']} test prompts" + (f"; {', '.join(said)}{where}." if said else ".")
    return told + missing


def lead(summary: dict[str, Any]) -> str:
    """The best of all certified rules without training, and the gate's mean accepted length and speed beside it."""
    methods = summary["methods"]
    gate, longest, quick = best(methods, gate=True), best(methods, gate=False), fastest(methods)
    tau = methods[gate]["mean_accepted_length"] / methods[longest]["mean_accepted_length"]
    time = methods[gate]["speed"]["vs_plain"]["mean"] / methods[quick]["speed"]["vs_plain"]["mean"]
    ahead = (
        f"`{longest}` has the largest mean accepted length and the highest measured speed"
        if longest == quick
        else f"`{longest}` has the largest mean accepted length and `{quick}` the highest measured speed"
    )
    return (
        f"Of all certified rules without training {ahead}. `{gate}` has {tau:.2f} times that length and {time:.2f} "
        f"times that speed.{refusal(gate, methods[gate])}"
    )


def refusal(name: str, method: dict[str, Any]) -> str:
    """A sentence where a method that leads its kind is not certified; nothing elsewhere."""
    if method.get("certified_bound") is not None:
        return ""
    return f" `{name}` is not certified, so that these are the figures of strict decoding."


def cut(methods: dict[str, dict[str, Any]]) -> str:
    """How many answers of each method the limit ended; nothing where none was, and for results without this count."""
    counts = {name: method["cut"] for name, method in methods.items() if method.get("cut")}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f" Test answers cut at the limit: {listed}." if counts else ""


BESIDE = (
    "run",
    "accuracy of plain, %",
    "mean accepted length of strict",
    "gate",
    "its length",
    "its difference, points",
)


def beside(summaries: dict[str, dict[str, Any]]) -> str:
    """One line per run: the learned gate beside plain and strict decoding."""
    return table(BESIDE, [beside_line(name, summary) for name, summary in summaries.items()], numbers=True)


def beside_line(name: str, summary: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one run; its gate is the learned method with the largest mean accepted length."""
    methods = summary["methods"]
    learned = best(methods, gate=True)
    strict, gate = (
        dict(zip(HEADER, cells(key, methods[key], summary["headline_budget"]), strict=True))
        for key in ("exact", learned)
    )
    accuracy = percent(summary["plain"]["accuracy"])
    return name, accuracy, strict["tau"], learned, gate["tau"], gate["difference"]


def of_seeds(found: dict[str, Any]) -> str:
    """What the gate's lead is over several seeds; every excluded seed is named with its reason."""
    used = [one for one in found["seeds"].values() if "excluded" not in one]
    spans = {
        name: f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for name, one in found["lead"].items()
    }
    text = (
        f"Over {len(used)} seeds of pair, prompts and labels the gate leads the best of {', '.join(found['free'])} by "
        f"a median factor of {spans['tau']} in mean accepted length and of {spans['time']} in speed; brackets hold the "
        "range."
        if used
        else "No seed has a target that is strong enough."
    )
    return " ".join([text, *uncertified(found), *excluded(found)])


def uncertified(found: dict[str, Any]) -> list[str]:
    """A sentence for every seed on which no setting of the gate is certified."""
    used = {seed: one for seed, one in found["seeds"].items() if "excluded" not in one}
    strict = [seed for seed, one in used.items() if one["methods"][one["lead"]["tau"]["gate"]]["bound"] is None]
    return [
        f"On seed {seed} no setting of the gate is certified, so that its figures there are those of strict decoding."
        for seed in strict
    ]


def excluded(found: dict[str, Any]) -> list[str]:
    """A sentence for every seed that is left out, with its reason."""
    return [f"Seed {seed} is excluded: {one['excluded']}" for seed, one in found["seeds"].items() if "excluded" in one]


def judgements(found: dict[str, Any]) -> str:
    """One line per method: which labelled mismatches it accepts at its certified setting, and how many rightly."""
    lines = []
    for name, one in found["methods"].items():
        shares = ["–" if one[key] is None else percent(one[key]) for key in ("precision", "recall")]
        lines.append((name, str(one["accepted"]), str(one["harmful_accepted"]), *shares))
    about = f"{found['mismatches']} labelled mismatches of problems that no head saw, {found['harmless']} harmless:"
    head = ("rule", "accepted", "of these harmful", "precision, %", "recall, %")
    return f"{about}\n\n{table(head, lines, numbers=True)}"


def html(summary: dict[str, Any]) -> str:
    """The table as HTML."""

    def line(texts: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows(summary))
    return f"<table>\n{line(HEADER, 'th')}\n{body}\n</table>"


# ---- Self-contained HTML pages: one layout, and a template for each kind of content.


TEMPLATES = Path(__file__).with_name("templates")
STYLES = (rendering.TEMPLATES / "page.css", rendering.TEMPLATES / "tokens.css", TEMPLATES / "report.css")
SCRIPTS = (rendering.TEMPLATES / "tokens.js",)


def page(name: str, folder: Path = TEMPLATES, **content: Any) -> str:
    """The page of the template `<name>.html.j2` in `folder`; a study keeps its template in its own folder."""
    template = folder / f"{name}.html.j2"
    return render(template, scripts=SCRIPTS, styles=STYLES, beside=(TEMPLATES,), pct=percent, **content)


def explained(trace: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the report shows of reports/trace.json: both answers, aligned; None without a trace."""
    if trace is None:
        return None
    loose, strict = (
        Run(name, [TracedToken(**token) for token in trace[key]["tokens"]], Statistics())
        for key, name in (("loose", f"{trace['method']}, {trace['knob']:g}"), ("strict", STRICT))
    )
    marks = {key: {name: trace[key][name] for name in ("score", "mean_accepted_length")} for key in ("loose", "strict")}
    shown = {"id": trace["id"], "context": visible(trace["context"]), "meanings": MEANINGS, "marks": marks}
    return {**shown, **side_by_side(loose, strict)}


def provenance(results: Results) -> dict[str, dict[str, str]]:
    """For each calibrated method what its certificates depend on, by dotted name."""
    proofs = {name: found["proof"] for name, found in results.calibration.items() if found.get("proof")}
    return {
        name: flat({"scope": certificate["scope"], "prompts": certificate["source"]})
        for name, certificate in proofs.items()
    }


def asks_gate(method: dict[str, Any]) -> bool:
    """Whether a method's rule asks a trained gate."""
    return "gate" in RULES[meant(method["rule"])[0]].needs


def best(methods: dict[str, Any], *, gate: bool) -> str:
    """The certified method with the largest mean accepted length of those that ask a gate, or of those that do not."""
    names = candidates(methods, gate)
    return max(names, key=lambda name: float(methods[name]["mean_accepted_length"]))


def fastest(methods: dict[str, Any]) -> str:
    """The certified rule without training that is fastest against plain decoding."""
    return max(candidates(methods, gate=False), key=lambda name: float(methods[name]["speed"]["vs_plain"]["mean"]))


def candidates(methods: dict[str, Any], gate: bool) -> list[str]:
    """The methods of one kind. A refused one decodes strictly and is left out, unless all of its kind are refused."""
    names = [name for name, method in methods.items() if asks_gate(method) is gate]
    certified = [name for name in names if methods[name].get("certified_bound") is not None]
    return certified or names
