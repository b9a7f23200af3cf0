"""What the command line shows: colours for a trace, lines for a gate, a table of times."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer

from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.gates.config import GateConfig
from gistgate.observing.race import Clock
from gistgate.observing.trace import TracedToken

COLOURS = {"strict": "green", "loose": "yellow", "carried": "cyan", "own": "white", "loop": "magenta"}


def coloured(tokens: Sequence[TracedToken]) -> str:
    """The answer with a colour per reason, a legend, and the gate's opinion of every loose token."""
    legend = "  ".join(typer.style(reason, fg=colour) for reason, colour in COLOURS.items())
    text = "".join(typer.style(token.text, fg=COLOURS[token.reason]) for token in tokens)
    loose = [
        f"  {token.text!r}: target {token.probability:.3f}" + ("" if token.kept is None else f", gate {token.kept:.3f}")
        for token in tokens
        if token.reason == "loose"
    ]
    return "\n".join([legend, "", text, *(["", "loose tokens:", *loose] if loose else [])])


def as_lines(tokens: Sequence[TracedToken]) -> str:
    """One JSON object per token."""
    return "\n".join(json.dumps(token.as_dict(), ensure_ascii=False) for token in tokens)


def described(config: GateConfig, proof: Proof | None) -> str:
    """A gate in words: partners, features, and what is certified of it."""
    draft = config.draft.name if config.draft else "any drafter"
    lines = [
        f"head        {config.head['type']}, probabilities by {config.map['type']}",
        f"target      {config.target.name} ({config.target.architecture}, width {config.target.hidden_size})",
        f"draft       {draft}",
        f"tokenizer   {config.tokenizer.name}, {config.tokenizer.num_tokens} tokens",
        "features    " + ", ".join(f"{name} ({size})" for name, size in config.features.items()),
    ]
    if proof is None:
        return "\n".join([*lines, "settings    none was calibrated; give one yourself, such as --set risk=0.05"])
    return "\n".join([*lines, proved(proof)])


def proved(proof: Proof) -> str:
    """What a proof says, in words."""
    made = f", made {proof.made}" if proof.made else ""
    return "\n".join([
        f"certificate rule {proof.rule}, K {proof.block}, drafter {proof.drafter}{made}",
        *(point_line(proof, point) for point in proof.points),
        f"            holds for {proof.source or 'prompts like those of the calibration'}",
    ])  # fmt: skip


def point_line(proof: Proof, point: OperatingPoint) -> str:
    """What is certified for one budget."""
    unit = "points" if proof.score == "task" else f"% of the score '{proof.score}'"
    if not point.certified:
        return f"budget {100 * point.budget:g} %  nothing certified: {point.refusal}"
    settings = ", ".join(f"{name} {value}" for name, value in point.settings.items()) or "no settings"
    return (
        f"budget {100 * point.budget:g} %  {settings}: loses at most {100 * point.bound:.2f} {unit} with "
        f"{100 * point.confidence:g} % confidence, from {point.n} prompts of which {point.losses + point.gains} "
        f"differ; bound: {point.bound_kind}; harmed answers: {100 * point.harm:.2f} %, at most "
        f"{100 * point.harm_bound:.2f} %"
    )


def timed(clocks: Sequence[Clock]) -> str:
    """Seconds, speed against the first, tau and looseness, one line each."""
    lines = [f"{'':12}{'seconds':>10}{'speed':>8}{'tau':>8}{'loose/100':>11}{'tokens':>8}"]
    for clock in clocks:
        done, ratio = clock.statistics, clocks[0].seconds / clock.seconds
        lines.append(
            f"{clock.name:12}{clock.seconds:10.2f}{ratio:8.2f}{done.mean_accepted_length:8.2f}"
            f"{done.loose_per_100:11.1f}{done.tokens:8d}"
        )
    if clocks[0].loops:
        lines.append(f"answers that end in a loop: {clocks[0].loops} prompts; these count only where all are such")
    return "\n".join(lines)
