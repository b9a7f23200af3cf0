"""What the command line shows: counters, colours for a trace, lines for a gate, a table of
times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gistgate.core.utils import printable

if TYPE_CHECKING:
    from gistgate.core.request import Generation, Statistics
    from gistgate.coverage.certificate import Certificate, OperatingPoint
    from gistgate.gate import GateConfig
    from gistgate.measure.outlook import Findings
    from gistgate.measure.trace import TracedToken
    from gistgate.measure.tune import Finding


COLOURS = {
    "strict": "green",
    "loose": "yellow",
    "carried": "cyan",
    "own": "white",
    "loop": "magenta",
}
"""By the reason why a token is there."""
ALARMS = ("alarms", "target", "far", "loose")
"""Endings of the counters of a guard's alarms."""


def say(shown: RenderableType) -> None:
    """Print to standard output, in colours where it is a terminal; long lines stay whole."""
    Console(highlight=False).print(shown, soft_wrap=True)


def counted(answer: Generation) -> str:
    """Return one line about an answer."""
    done = answer.statistics
    return (
        f"{done.tokens} tokens in {done.forwards} target forwards (tau"
        f" {done.mean_accepted_length:.2f}), {done.loose} loose, ended by {answer.finish}"
    )


def guarded(counted: Statistics, guards: Sequence[str]) -> str:
    """Return one line about what the guards of a request did."""
    extra = counted.extra
    parts = []
    for name in dict.fromkeys(guards):
        alarms = sum(extra.get(f"{name}_{kind}", 0.0) for kind in ALARMS)
        rounds = extra.get(f"{name}_rounds", 0.0)
        parts.append(f"{name} {alarms:.0f} alarms, {rounds:.0f} rounds stricter")
    if extra.get("loop_open"):
        parts.append("the answer ends in a loop")
    return "guards: " + "; ".join(parts)


def coloured(tokens: Sequence[TracedToken]) -> Text:
    """Return the answer with a colour per reason, a legend, and the gate's opinion of every loose
    token.
    """
    shown = Text("  ").join(Text(reason, colour) for reason, colour in COLOURS.items())
    shown.append("\n\n")
    for token in tokens:
        shown.append(printable(token.text), COLOURS[token.reason])
    heading = "\n\nloose tokens:"
    for token in tokens:
        if token.reason == "loose":
            gate = "" if token.kept is None else f", gate {token.kept:.3f}"
            shown.append(f"{heading}\n  {token.text!r}: target {token.probability:.3f}{gate}")
            heading = ""
    return shown


def described(config: GateConfig, certificate: Certificate | None) -> str:
    """Return a gate in words: partners, features, and what is certified of it."""
    target = config.target
    features = ", ".join(f"{name} ({size})" for name, size in config.features.items())
    settings = "settings    none was calibrated; give one yourself, such as --set risk=0.05"
    return "\n".join(
        [
            f"head        {config.head['type']}, probabilities by {config.map['type']}",
            f"target      {target.name} ({target.architecture}, width {target.hidden_size})",
            f"draft       {config.draft.name if config.draft else 'any drafter'}",
            f"tokenizer   {config.tokenizer.name}, {config.tokenizer.num_tokens} tokens",
            f"features    {features}",
            settings if certificate is None else proved(certificate),
        ]
    )


def proved(certificate: Certificate) -> str:
    """Return what a certificate says, in words."""
    date = f", made {certificate.made}" if certificate.made else ""
    source = certificate.source or "prompts like those of the calibration"
    return "\n".join(
        [
            f"certificate rule {certificate.rule}, K {certificate.block}, drafter"
            f" {certificate.drafter}{date}",
            *(point_line(certificate.score, point) for point in certificate.points),
            f"            holds for {source}",
        ]
    )


def point_line(score: str, point: OperatingPoint) -> str:
    """Return what is certified for one budget, which is in the unit of the score."""
    budget = f"budget {100 * point.budget:g} % "
    if not point.certified:
        return f"{budget} nothing certified: {point.refusal}"
    unit = "points" if score in ("task", "capped") else f"% of the score '{score}'"
    settings = ", ".join(f"{name} {value}" for name, value in point.settings.items())
    line = (
        f"{budget} {settings or 'no settings'}: within the budget with"
        f" {100 * point.confidence:g} % confidence, bound {100 * point.bound:.2f} {unit}, from"
        f" {point.n} prompts of which {point.losses + point.gains} differ; kind of bound:"
        f" {point.bound_kind}; harmed answers: {100 * point.harm:.2f} %, at most"
        f" {100 * point.harm_bound:.2f} %"
    )
    if point.growth_limit is not None:
        line += (
            f"; answers grow by {point.growth:.2%}, at most {point.growth_bound:.2%} (allowed:"
            f" {point.growth_limit:.2%})"
        )
    if point.fluency_limit is not None:
        line += (
            f"; a token is {point.fluency_loss:.3f} nats less probable, at most"
            f" {point.fluency_bound:.3f} (allowed: {point.fluency_limit:g})"
        )
    return line


def table_of(first: str, *columns: str) -> Table:
    """Return an empty table whose columns are aligned to the right, but for the first one."""
    table = Table(first, box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def timed(clocks: Mapping[str, tuple[float, Statistics]], loops: int) -> Group:
    """Return seconds, speed against plain decoding, tau and looseness, one line each."""
    table = table_of("", "seconds", "speed", "tau", "loose/100", "tokens")
    plain, _ = clocks["plain"]
    for name, (seconds, done) in clocks.items():
        figures = (
            f"{seconds:.2f} {plain / seconds:.2f} {done.mean_accepted_length:.2f}"
            f" {done.loose_per_100:.1f} {done.tokens}"
        )
        table.add_row(name, *figures.split())
    note = f"{loops} prompts were answered with a loop; they are left out unless every prompt was."
    return Group(table, note) if loops else Group(table)


def promised(findings: Findings) -> Group:
    """Return what a pair costs, which multiples of plain decoding each K promises, and what
    looseness changes.
    """
    changes = changes_of(findings)
    if not findings.costs:
        return Group(changes, "")
    table = table_of(
        "K", "verify K + 1", "strict tau", "strict speed", "half of mismatches", "highest speed"
    )
    costs = findings.costs[0]
    outlooks = findings.outlooks[0]
    for outlook in outlooks:
        figures = (
            f"{costs.verification(outlook.block):.2f} {outlook.tau:.2f} {outlook.strict:.2f}"
            f" {outlook.half:.2f} {outlook.ceiling:.2f}"
        )
        table.add_row(f"{outlook.block:2}", *figures.split())
    half_an_answer = findings.changes[0].tokens / 2
    seconds = costs.step * half_an_answer / max(outlook.strict for outlook in outlooks)
    note = (
        f"One target step takes {1000 * costs.step:.1f} ms, one draft step {costs.draft:.2f} of"
        " that. Verifying is in target steps; the highest speed is that of accepting every draft."
        f" r = 0.9 swaps near ties alone.\nLabels for a gate: {findings.labels:.1f} mismatches for"
        f" each training prompt, about {seconds:.1f} s each when labelled alone; batches divide"
        " that.\n"
    )
    return Group(table, "", changes, "", note)


def changes_of(findings: Findings) -> Table:
    """Return what each looseness makes of the answers, and of their scores where there are any."""
    is_scored = findings.changes[0].score is not None
    scores = ("score", "lost", "gained") if is_scored else ()
    table = table_of("prob-ratio", "tau", "tokens", "forwards", "changed", *scores)
    for change in findings.changes:
        figures = f"{change.tau:.2f} {change.tokens:.0f} {change.forwards:.1f} {change.changed:.0%}"
        if is_scored:
            figures += f" {change.score:.2f} {change.lost} {change.gained}"
        table.add_row("strict" if change.r == 1 else f"r = {change.r:g}", *figures.split())
    return table


def raced(finding: Finding) -> Table:
    """Return speeds against plain decoding: all candidates on the prompts that chose, the finalists
    on those that decided.
    """
    table = table_of("candidate", "speed when choosing", "speed when deciding")
    for name, speed in finding.screened.items():
        ratio = finding.to_plain.get(name)
        decided = f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else ""
        table.add_row(name, f"{speed:.2f}", decided)
    return table
