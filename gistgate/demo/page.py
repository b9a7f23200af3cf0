"""The page of one answer: every token with its reason, strict decoding beside it, numbers,
certificate, provenance.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import SequenceMatcher
from itertools import count
from pathlib import Path
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.files import write_text
from gistgate.core.request import Statistics
from gistgate.core.utils import UNSEEN
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.choose import usable
from gistgate.coverage.covers import covers
from gistgate.measure.trace import TracedToken, trace

STRICT = "strict"  # name of the run that strict decoding makes
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Run:
    """A traced answer."""

    name: str  # heading of the answer, such as the rule with its setting
    tokens: Sequence[TracedToken]
    statistics: Statistics


def record(
    decoder: Decoder, ids: Sequence[int], tokenizer: Any, name: str | None = None, **request: Any
) -> Run:
    """Decode one prompt and return the traced answer; `request` goes to `Decoder.generate`."""
    answer, tokens = trace(decoder, ids, tokenizer, **request)
    return Run(rule_name(decoder.rule) if name is None else name, tokens, answer.statistics)


def rule_name(rule: Any) -> str:
    """The rule's id and the value of its knob."""
    return (
        str(rule.id)
        if rule.knob is None
        else f"{rule.id}, {rule.knob} {getattr(rule, rule.knob):g}"
    )


def numbers(statistics: Statistics) -> dict[str, str]:
    """What a reader compares, formatted; seconds are those of this one run."""
    seconds = statistics.seconds.get("total", 0.0)
    return {
        "tokens": str(statistics.tokens),
        "target forwards": str(statistics.forwards),
        "mean accepted length (tau)": f"{statistics.mean_accepted_length:.2f}",
        "loose tokens per hundred": f"{statistics.loose_per_100:.1f}",
        "seconds": f"{seconds:.2f}",
        "tokens per second": f"{statistics.tokens / seconds:.1f}" if seconds else "–",
    }


def aligned(
    left: Sequence[str], right: Sequence[str]
) -> list[tuple[int | None, tuple[slice, slice]]]:
    """Two answers, given as the texts of their tokens, in spans of both; those that differ are
    numbered from 1.
    """
    numbers = count(1)
    codes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    return [
        (None if kind == "equal" else next(numbers), (slice(a, b), slice(c, d)))
        for kind, a, b, c, d in codes
    ]


def claim(loaded: Any, rule: Any, value: float) -> str:
    """What the certificate says about `rule`, its knob at `value`, and the requests."""
    if loaded.options.segments:
        return "The certificate of segments lies in their folder; this page does not read it."
    decoder = loaded.decoder
    coverage = loaded.coverage
    certificate = coverage.certificate
    if decoder.drafter is None or not decoder.block:
        return "Decoding is plain, so that nothing can be lost."
    if certificate is None:
        return "Not certified: there is no certificate."
    settings = {item.name: getattr(rule, item.name) for item in fields(rule)}
    settings[str(rule.knob)] = value
    wish = replace(loaded.options.wish, names_certificate=coverage.is_named)
    certificate = usable(certificate, wish)
    setup = replace(coverage.setup, rule=rule.id, settings=settings)
    doubts = [difference.sentence for difference in covers(certificate, setup)]
    if loaded.uncovered is not None:
        doubts.append(loaded.uncovered)
    if doubts:
        return f"Not certified: {'; '.join(doubts)}."
    point = next(
        point for point in certificate.certified if point.settings[str(rule.knob)] == value
    )
    # the budget first: the point's own bound was computed after the prompts had chosen the point
    return (
        f"Certified: loses at most {100 * point.budget:g} points with {100 * point.confidence:g} %"
        f" confidence (bound {100 * point.bound:.2f}), from {point.n} prompts."
    )


def tables_of(decoder: Decoder, certificate: Certificate | None) -> dict[str, dict[str, Any]]:
    """The certificate, and where the gate and its partners come from, as far as there are any."""
    tables: dict[str, dict[str, Any]] = {}
    if certificate is not None:
        names = ("rule", "drafter", "block", "score", "source", "made")
        points = {f"budget {point.budget:g}": asdict(point) for point in certificate.points}
        tables["Certificate"] = {**{name: getattr(certificate, name) for name in names}, **points}
    if (config := getattr(decoder.parts.gate, "config", None)) is not None:
        parts = {name: getattr(config, name) for name in ("target", "draft", "tokenizer")}
        tables["Provenance"] = {
            **{name: asdict(part) for name, part in parts.items() if part},
            **config.provenance,
        }
    return tables


def render(
    template: str | Path,
    *,
    scripts: tuple[Path, ...],
    styles: tuple[Path, ...],
    connects: str = "'none'",
    beside: tuple[Path, ...] = (),
    **values: Any,
) -> str:
    """Fill a template of this folder, or one that is given by its whole path; all `values` are
    escaped.

    The content security policy allows `scripts` and `styles`, which stand inside the page, and
    requests to `connects`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    path = TEMPLATES / template
    loader = FileSystemLoader([path.parent, *beside, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script, style = (
        "\n".join(file.read_text(encoding="utf-8") for file in files) for files in (scripts, styles)
    )
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; connect-src"
        f" {connects}; script-src '{digest(script)}'; style-src '{digest(style)}'"
    )
    page = environment.get_template(path.name)
    return page.render(script=Markup(script), style=Markup(style), policy=policy, **values)


MEANINGS = {  # reason -> what the legend says about it
    "strict": "draft token that the strict rule accepts",
    "loose": "draft token that only the loose rule accepts",
    "carried": "strict accept behind a loose one of the same block",
    "own": "token that the target adds itself",
    "loop": "strict accept while the loop guard keeps the gate closed",
}


def shown(token: TracedToken) -> dict[str, str]:
    """Text, reason and note of a token (why it is there, what gate and target think), ready for a
    page; unescaped.
    """
    gate = "" if token.kept is None else f", gate {token.kept:.3f}"
    note = f"{token.reason}{gate}, target {token.probability:.3f}"
    return {"text": visible(token.text), "reason": token.reason, "note": note}


def visible(text: str) -> str:
    """The text with characters that cannot be seen, or that reorder others, written as their code
    points.
    """
    named = UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
    return named.replace("\n", "↵\n") or "∅"


def trace_page(
    prompt: str,
    run: Run,
    strict: Run | None = None,
    claim: str | None = None,
    tables: Mapping[str, Any] | None = None,
) -> str:
    """A whole HTML document, which loads nothing: `run` explained, and `strict` aligned with it
    where it is given.

    `claim` is one sentence about what is certified for the setting of `run`; `tables` follow under
    their names.
    """
    return render(
        "trace.html.j2",
        scripts=(TEMPLATES / "tokens.js",),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css"),
        title="GistGate trace",
        prompt=visible(prompt),
        claim=claim,
        meanings=MEANINGS,
        tables={name: flat(values) for name, values in (tables or {}).items()},
        **side_by_side([run] if strict is None else [run, strict]),
    )


def side_by_side(runs: Sequence[Run]) -> dict[str, Any]:
    """What the templates show of answers: `numbers`, `answers` in segments, and `differences` that
    number these.
    """
    texts = [[token.text for token in one.tokens] for one in runs]
    found = aligned(texts[0], texts[-1])
    answers = [
        {
            "name": one.name,
            "parts": [
                {"number": number, "tokens": [shown(token) for token in one.tokens[spans[side]]]}
                for number, spans in found
            ],
        }
        for side, one in enumerate(runs)
    ]
    rows = [
        {
            "number": number,
            "texts": [
                visible("".join(text[span])) for text, span in zip(texts, spans, strict=True)
            ],
        }
        for number, spans in found
        if number is not None
    ]
    return {
        "numbers": [numbers(one.statistics) for one in runs],
        "answers": answers,
        "differences": rows,
    }


def write_trace(
    path: str | Path, loaded: Any, prompt: str, ids: Sequence[int], request: Mapping[str, Any]
) -> None:
    """Decode one prompt as the user of the command line wishes and strictly, and write the page of
    both.
    """
    decoder = loaded.decoder
    tokenizer = loaded.target.tokenizer
    told = None
    if (knob := decoder.rule.knob) is not None:
        told = claim(loaded, decoder.rule, getattr(decoder.rule, knob))
    run = record(decoder, ids, tokenizer, **request)
    strict = record(decoder.strict(), ids, tokenizer, STRICT, **request)
    tables = tables_of(decoder, loaded.coverage.certificate)
    write_text(path, trace_page(prompt, run, strict, claim=told, tables=tables))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as one, with dotted names; lists are written as JSON."""
    rows: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{name}.")
        else:
            text = (
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, default=str)
            )
            rows[f"{prefix}{name}"] = visible(text)
    return rows
