"""The tables of docs/segments.md, made from the published summary alone."""

from __future__ import annotations

from typing import Any

from pipeline.report.markdown import table

ORDER = (
    "probe",
    "probe-gate",
    "logprob",
    "constant",
    "probe-whole",
    "probe-replaced",
    "score",
    "pair",
    "prm",
    "ratio",
    "ratio-top2",
    "published",
    "gate-only",
    "strict",
)


def content(summary: dict[str, Any]) -> str:
    """What stands between the page's markers."""
    parts = (
        ("Ways of judging", methods(summary)),
        ("Judges of meaning", judges(summary["agreement"])),
        ("Probes", probes(summary["probes"])),
        *([("When segments beat tokens", study(summary["study"]))] if summary["study"] else []),
    )
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts)


def methods(summary: dict[str, Any]) -> str:
    """Loss, certificate, acceptance and speed of every way of judging, below the token rules."""
    found = summary["methods"]
    rows: list[tuple[str, ...]] = [
        (name, "-", "-", "-", "-", "-", "-", f"{one['tau']:.2f}", "-", speed(one))
        for name, one in summary["tokens"].items()
    ]
    rows += [method_row(name, found[name]) for name in ORDER if name in found]
    head = ("judged by", "value", "n", "loss, %", "bound, %", "test, points", "passed", "tau", "draft", "speed")
    text = (
        "`loss` and `bound` on n prompts, those of calibration where something is certified (bold) and of development "
        "elsewhere; `test` is lm-eval's accuracy minus the strict one on other prompts (90 % interval); `passed` "
        "is the share of finished segments that the score let through; `draft` counts draft forwards per token; "
        f"`speed` is the processor time of {summary['reference']} over that of the method on the same "
        f"{summary['speed_prompts']} test prompts, one row and one thread, with its 90 % interval."
    )
    return f"{table(head, rows)}\n\n{text}"


def method_row(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    bound = f"{100 * one['bound']['value']:.2f}" if "bound" in one else "-"
    test = interval(one["test"]["difference"], 100, "{:+.1f}") if one["test"] else "-"
    return (
        f"**{name}**" if one["certified"] else name,
        f"{one['value']:.3g}",
        str(one["n"]),
        f"{100 * one['loss']:.2f}",
        f"**{bound}**" if one["certified"] else bound,
        test,
        f"{one['passed']:.2f}",
        f"{one['tau']:.2f}",
        f"{one['draft_forwards_per_token']:.2f}",
        speed(one["speed"]) if one["speed"] else "-",
    )


def speed(one: dict[str, Any]) -> str:
    return interval(one["faster_per_answer"], 1, "{:.2f}")


def interval(found: dict[str, float], scale: float, form: str) -> str:
    """A value with its ends."""
    mean, low, high = (form.format(scale * found[name]) for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def judges(agreement: dict[str, Any]) -> str:
    """How often judges agree about two samples of one prefix."""
    rows = [(pair, f"{one['agree']:.3f}", f"{one['kappa']:.3f}") for pair, one in agreement["agreement"].items()]
    alike = ", ".join(f"{name} {share:.3f}" for name, share in agreement["pairs_alike"].items())
    return (
        f"{table(('judges', 'agree', 'kappa'), rows)}\n\n{agreement['segments']} segments behind "
        f"{agreement['prefixes']} prefixes. Share of pairs that a judge calls alike: {alike}."
    )


def probes(found: dict[str, Any]) -> str:
    """What probes are worth on unseen problems."""
    rows = [
        (role, trial, writer, *probe_cells(one))
        for role, trials in found.items()
        for trial, by_writer in trials.items()
        for writer, one in by_writer.items()
    ]
    head = ("probe of", "trained", "measured on segments of", "Brier", "constant", "ECE", "correlation")
    return table(head, rows)


def probe_cells(one: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{one[name]:.3f}" for name in ("brier", "brier_constant", "ece", "correlation"))


def study(found: dict[str, Any]) -> str:
    """Speed against strict tokens by the share of accepted segments, for each draft and kind of segment."""
    rows = []
    for draft, one in found["by_draft"].items():
        for kind, by_rate in one["segments"].items():
            cells = (f"{point['faster']['mean']:.2f}" for point in by_rate.values())
            rows.append((draft, kind, f"{one['tau']:.2f}", *cells))
    rates = next(iter(next(iter(found["by_draft"].values()))["segments"].values()))
    return table(("draft", "segments", "strict tau", *rates), rows)
