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
    from gistgate.certify.card import ServedCertificate
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


def say(shown: RenderableType) -> None:
    """Print to standard output, in colours where it is a terminal; long lines stay whole."""
    Console(highlight=False).print(shown, soft_wrap=True)


def counted(answer: Generation) -> str:
    """One line about an answer."""
    done = answer.statistics
    return (
        f"{done.tokens} tokens in {done.forwards} target forwards (tau"
        f" {done.mean_accepted_length:.2f}), {done.loose} loose, ended by {answer.finish}"
    )


def guarded(counted: Statistics, guards: Sequence[str]) -> str:
    """One line about what the guards of a request did."""
    extra = counted.extra
    said = []
    for name in dict.fromkeys(guards):
        alarms = sum(
            extra.get(f"{name}_{kind}", 0.0) for kind in ("alarms", "target", "far", "loose")
        )
        said.append(
            f"{name} {alarms:.0f} alarms, {extra.get(f'{name}_rounds', 0.0):.0f} rounds stricter"
        )
    open_loop = ["the answer ends in a loop"] if extra.get("loop_open") else []
    return "guards: " + "; ".join(said + open_loop)


def coloured(tokens: Sequence[TracedToken]) -> Text:
    """The answer with a colour per reason, a legend, and the gate's opinion of every loose
    token.
    """
    shown = Text("  ").join(Text(reason, colour) for reason, colour in COLOURS.items())
    shown.append("\n\n")
    for token in tokens:
        shown.append(printable(token.text), COLOURS[token.reason])
    if loose := [token for token in tokens if token.reason == "loose"]:
        shown.append("\n\nloose tokens:")
    for token in loose:
        gate = "" if token.kept is None else f", gate {token.kept:.3f}"
        shown.append(f"\n  {token.text!r}: target {token.probability:.3f}{gate}")
    return shown


def compared(certificate: ServedCertificate) -> str:
    """The verdict about one server against another, and means over the answers of both."""
    hint = (
        "" if certificate.differing else " No answer differs: make sure that these are two servers."
    )
    lines = [certificate.sentence + hint]
    for side, means in (
        ("strict", certificate.strict_answers),
        ("loose", certificate.loose_answers),
    ):
        lines.append(
            f"{side:7} "
            + ", ".join(f"{name} {mean:.4g}" for name, mean in means.items() if mean is not None)
        )
    return "\n".join(lines)


def described(config: GateConfig, certificate: Certificate | None) -> str:
    """A gate in words: partners, features, and what is certified of it."""
    told = [
        f"head        {config.head['type']}, probabilities by {config.map['type']}",
        (
            f"target      {config.target.name} ({config.target.architecture}, width"
            f" {config.target.hidden_size})"
        ),
        f"draft       {config.draft.name if config.draft else 'any drafter'}",
        f"tokenizer   {config.tokenizer.name}, {config.tokenizer.num_tokens} tokens",
        "features    " + ", ".join(f"{name} ({size})" for name, size in config.features.items()),
    ]
    uncalibrated = "settings    none was calibrated; give one yourself, such as --set risk=0.05"
    return "\n".join([*told, uncalibrated if certificate is None else proved(certificate)])


def proved(certificate: Certificate) -> str:
    """What a proof says, in words."""
    made = f", made {certificate.made}" if certificate.made else ""
    return "\n".join(
        [
            (
                f"certificate rule {certificate.rule}, K {certificate.block}, drafter"
                f" {certificate.drafter}{made}"
            ),
            *(point_line(certificate, point) for point in certificate.points),
            (
                "            holds for"
                f" {certificate.source or 'prompts like those of the calibration'}"
            ),
        ]
    )


def point_line(certificate: Certificate, point: OperatingPoint) -> str:
    """What is certified for one budget."""
    unit = (
        "points"
        if certificate.score in ("task", "capped")
        else f"% of the score '{certificate.score}'"
    )
    if not point.certified:
        return f"budget {100 * point.budget:g} %  nothing certified: {point.refusal}"
    settings = (
        ", ".join(f"{name} {value}" for name, value in point.settings.items()) or "no settings"
    )
    longer = (
        ""
        if point.growth_limit is None
        else (
            f"; answers grow by {point.growth:.2%}, at most {point.growth_bound:.2%} (allowed:"
            f" {point.growth_limit:.2%})"
        )
    )
    return (
        f"budget {100 * point.budget:g} %  {settings}: within the budget with"
        f" {100 * point.confidence:g} % confidence, bound {100 * point.bound:.2f} {unit}, from"
        f" {point.n} prompts of which {point.losses + point.gains} differ; kind of bound:"
        f" {point.bound_kind}; harmed answers: {100 * point.harm:.2f} %, at most"
        f" {100 * point.harm_bound:.2f} %{longer}"
    )


def table_of(first: str, *others: str) -> Table:
    """An empty table whose columns are aligned to the right, but for the first one."""
    table = Table(first, box=None, pad_edge=False)
    for column in others:
        table.add_column(column, justify="right")
    return table


def timed(clocks: Mapping[str, tuple[float, Statistics]], loops: int) -> Group:
    """Seconds, speed against plain decoding, tau and looseness, one line each."""
    table = table_of("", "seconds", "speed", "tau", "loose/100", "tokens")
    for name, (seconds, done) in clocks.items():
        figures = (seconds, clocks["plain"][0] / seconds, done.mean_accepted_length)
        table.add_row(
            name, *(f"{x:.2f}" for x in figures), f"{done.loose_per_100:.1f}", str(done.tokens)
        )
    note = f"{loops} prompts were answered with a loop; they are left out unless every prompt was."
    return Group(table, note) if loops else Group(table)


def promised(found: Findings) -> Group:
    """What a pair costs, which multiples of plain decoding each K promises, and what looseness
    changes.
    """
    scored = ("score", "lost", "gained") if found.changes[0].score is not None else ()
    changes = table_of("prob-ratio", "tau", "tokens", "forwards", "changed", *scored)
    for one in found.changes:
        figures = f"{one.tau:.2f} {one.tokens:.0f} {one.forwards:.1f} {one.changed:.0%}"
        judged = f"{one.score:.2f} {one.lost} {one.gained}" if scored else ""
        changes.add_row(
            "strict" if one.r == 1 else f"r = {one.r:g}", *figures.split(), *judged.split()
        )
    if not found.costs:
        return Group(changes, "")
    table = table_of(
        "K", "verify K + 1", "strict tau", "strict speed", "half of mismatches", "highest speed"
    )
    costs = found.costs[0]
    for each in found.outlooks[0]:
        speeds = (costs.verification(each.block), each.tau, each.strict, each.half, each.ceiling)
        table.add_row(f"{each.block:2}", *(f"{x:.2f}" for x in speeds))
    seconds = (
        costs.step * found.changes[0].tokens / 2 / max(k.strict for k in found.outlooks[0])
    )  # half an answer
    note = (
        f"One target step takes {1000 * costs.step:.1f} ms, one draft step {costs.draft:.2f} of"
        " that. Verifying is in target steps; the highest speed is that of accepting every draft."
        f" r = 0.9 swaps near ties alone.\nLabels for a gate: {found.labels:.1f} mismatches for"
        f" each training prompt, about {seconds:.1f} s each when labelled alone; batches divide"
        " that.\n"
    )
    return Group(table, "", changes, "", note)


def raced(found: Finding) -> Table:
    """Speeds against plain decoding: all candidates on the prompts that chose, the finalists on
    those that decided.
    """
    table = table_of("candidate", "speed when choosing", "speed when deciding")
    for name, speed in found.screened.items():
        ratio = found.to_plain.get(name)
        decided = "" if ratio is None else f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        table.add_row(name, f"{speed:.2f}", decided)
    return table
