"""The page of one answer: every token with its reason, strict decoding beside it, numbers, certificate, provenance."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gistgate.core.certificate import Certificate, OperatingPoint
from gistgate.core.decoder import Decoder
from gistgate.core.files import write_text
from gistgate.core.request import Statistics
from gistgate.measure.trace import TracedToken, trace
from gistgate.models.build import other_parts
from gistgate.models.choose import choose
from gistgate.models.options import DecodeOptions

STRICT = "strict"
"""Name of the run that strict decoding makes."""


@dataclass(frozen=True)
class Run:
    """A traced answer."""

    name: str  # heading of the answer, such as the rule with its setting
    tokens: Sequence[TracedToken]
    statistics: Statistics


def record(decoder: Decoder, ids: Sequence[int], tokenizer: Any, name: str | None = None, **request: Any) -> Run:
    """Decode one prompt and return the traced answer; `request` goes to `Decoder.generate`."""
    answer, tokens = trace(decoder, ids, tokenizer, **request)
    return Run(rule_name(decoder.rule) if name is None else name, tokens, answer.statistics)


def strict_run(decoder: Decoder, ids: Sequence[int], tokenizer: Any, **request: Any) -> Run:
    """Decode one prompt as `record` does, with the same drafter and K but without loose accepts."""
    return record(decoder.strict(), ids, tokenizer, STRICT, **request)


def rule_name(rule: Any) -> str:
    """The rule's id and the value of its knob."""
    knob = rule.knob
    return str(rule.id) if knob is None else f"{rule.id}, {knob} {getattr(rule, knob):g}"


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


@dataclass(frozen=True)
class Difference:
    """Two spans that stand at the same place of two answers and are not equal; one of them may be empty."""

    number: int  # place among all differences, from 1
    left: slice  # tokens of the first answer
    right: slice  # tokens of the second answer


def differences(left: Sequence[str], right: Sequence[str]) -> list[Difference]:
    """The differing spans of two answers, given as the texts of their tokens, in reading order."""
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    changes = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    return [
        Difference(number, slice(left_start, left_end), slice(right_start, right_end))
        for number, (_, left_start, left_end, right_start, right_end) in enumerate(changes, start=1)
    ]


def segments(num: int, spans: Sequence[tuple[int, slice]]) -> Iterator[tuple[int | None, slice]]:
    """Split `num` tokens into the given (number, span) pairs and the spans between them, whose number is None."""
    done = 0
    for number, span in spans:
        if done < span.start:
            yield None, slice(done, span.start)
        yield number, span
        done = span.stop
    if done < num:
        yield None, slice(done, num)


def proof_of(decoder: Decoder) -> Certificate | None:
    """The certificate that the decoder keeps, else the one beside its gate, which a gate of other weights lacks."""
    found: Certificate | None = decoder.certificate or getattr(decoder.parts.gate, "certificate", None)
    return found


def claim(options: DecodeOptions, decoder: Decoder, rule: Any, value: float, uncovered: str | None = None) -> str:
    """What the certificate says about the rule of this decoder at that value of its knob.

    Args:
        wishes: what the user says.
        decoder: what they became.
        rule: the rule, and `value` that of its knob.
        uncovered: why the certificate does not cover the requests themselves; None where it does.
    """
    if options.segments:
        return "The certificate of segments lies in their folder; this page does not read it."
    certificate = proof_of(decoder)
    if decoder.drafter is None or not decoder.block:
        return "Decoding is plain, so that nothing can be lost."
    if certificate is None:
        return "Not certified: there is no certificate."
    settings = {item.name: getattr(rule, item.name) for item in fields(rule)} | {str(rule.knob): value}
    wish = replace(options, rule=rule.id, settings=settings, budget=None, certificate=None)
    has_draft, has_gate = options.draft is not None, decoder.parts.gate is not None
    choice = choose(wish, certificate, has_gate=has_gate, has_draft=has_draft)
    doubts = (*choice.doubts, *other_parts(choice, certificate, options, decoder.target, decoder.drafter))
    if uncovered is not None:
        doubts = (*doubts, uncovered)
    if doubts:
        return f"Not certified: {'; '.join(doubts)}."
    return promise(next(point for point in certificate.certified if point.settings[str(rule.knob)] == value))


def promise(point: OperatingPoint) -> str:
    """The budget that a certified point keeps: its own bound was computed after the prompts had chosen the point."""
    return (
        f"Certified: loses at most {100 * point.budget:g} points with {100 * point.confidence:g} % confidence "
        f"(bound {100 * point.bound:.2f}), from {point.n} prompts."
    )


def own_claim(options: DecodeOptions, decoder: Decoder, uncovered: str | None = None) -> str | None:
    """The claim about the setting that the decoder runs with; None for a rule without a knob."""
    rule: Any = decoder.rule
    return None if rule.knob is None else claim(options, decoder, rule, getattr(rule, rule.knob), uncovered)


def certificate_table(decoder: Decoder) -> dict[str, Any]:
    """The certificate for a page; empty without one."""
    certificate = proof_of(decoder)
    if certificate is None:
        return {}
    points = {f"budget {point.budget:g}": asdict(point) for point in certificate.points}
    facts = {name: getattr(certificate, name) for name in ("rule", "drafter", "block", "score", "source", "made")}
    return {**facts, **points}


def provenance_table(decoder: Decoder) -> dict[str, Any]:
    """Where the gate and its partners come from; empty without a gate."""
    config = getattr(decoder.parts.gate, "config", None)
    if config is None:
        return {}
    told = {name: asdict(getattr(config, name)) for name in ("target", "draft", "tokenizer") if getattr(config, name)}
    return {**told, **config.provenance}


TEMPLATES = Path(__file__).parent / "templates"


def render(
    template: str | Path,
    *,
    scripts: tuple[Path, ...],
    styles: tuple[Path, ...],
    connects: str = "'none'",
    beside: tuple[Path, ...] = (),
    **values: Any,
) -> str:
    """Fill a template of this folder, or one that is given by its whole path.

    Args:
        template: name of the template, or its path.
        scripts: JavaScript files that stand inside the page.
        styles: CSS files that stand inside the page.
        connects: where the page's script may send requests, as a source of a content security policy.
        beside: further folders of templates that this one extends or imports.
        values: what the template shows; all of them are escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    path = TEMPLATES / template
    loader = FileSystemLoader([path.parent, *beside, TEMPLATES])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    script, style = joined(scripts), joined(styles)
    return environment.get_template(path.name).render(
        script=Markup(script), style=Markup(style), policy=policy(script, style, connects), **values
    )


def joined(files: tuple[Path, ...]) -> str:
    """The texts of our own files, one behind the other."""
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def policy(script: str, style: str, connects: str) -> str:
    """A content security policy that allows this script, this style and requests to `connects`, and nothing else."""
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; connect-src {connects}; "
        f"script-src '{digest(script)}'; style-src '{digest(style)}'"
    )


def digest(text: str) -> str:
    """The hash of an inline script or style as a content security policy writes it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


MEANINGS = {
    "strict": "draft token that the strict rule accepts",
    "loose": "draft token that only the loose rule accepts",
    "carried": "strict accept behind a loose one of the same block",
    "own": "token that the target adds itself",
    "loop": "strict accept while the loop guard keeps the gate closed",
}
"""Reason -> what the legend says about it."""

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters, marks that change the direction of writing, and halves of surrogate pairs."""


def shown(token: TracedToken) -> dict[str, str]:
    """Text, reason and note of a token, ready for a page; the text is not escaped."""
    return {"text": visible(token.text), "reason": token.reason, "note": note(token)}


def visible(text: str) -> str:
    """The text with characters that cannot be seen, or that reorder others, written as their code points."""
    named = UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
    return named.replace("\n", "↵\n") or "∅"


def note(token: TracedToken) -> str:
    """Why the token is there, and the probabilities of gate and target."""
    gate = "" if token.kept is None else f", gate {token.kept:.3f}"
    return f"{token.reason}{gate}, target {token.probability:.3f}"


def trace_page(
    prompt: str,
    run: Run,
    strict: Run | None = None,
    *,
    claim: str | None = None,
    certificate: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    title: str = "GistGate trace",
) -> str:
    """A whole HTML document, which loads nothing.

    Args:
        prompt: the text that was continued.
        run: the answer that is explained.
        strict: strict decoding of the same prompt, which is aligned with it; None leaves it out.
        claim: one sentence about what is certified for the setting of `run`.
        certificate: the certificate, by name.
        provenance: where models and gate come from, by name.
        title: heading of the page.
    """
    runs = [run] if strict is None else [run, strict]
    return render(
        "trace.html.j2",
        scripts=(TEMPLATES / "tokens.js",),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css"),
        title=title,
        prompt=visible(prompt),
        claim=claim,
        numbers=[numbers(one.statistics) for one in runs],
        meanings=MEANINGS,
        tables={name: flat(values) for name, values in named(certificate, provenance).items() if values},
        **side_by_side(run, strict),
    )


def side_by_side(run: Run, strict: Run | None) -> dict[str, Any]:
    """What the templates show of two answers: `answers` in segments, and the `differences` that number them."""
    runs = [run] if strict is None else [run, strict]
    spans = [] if strict is None else differences(texts(run), texts(strict))
    return {
        "answers": [{"name": one.name, "parts": parts(one, spans, first=one is run)} for one in runs],
        "differences": [] if strict is None else [compared(span, run, strict) for span in spans],
    }


def write_trace(path: str | Path, loaded: Any, prompt: str, ids: Sequence[int], request: Mapping[str, Any]) -> None:
    """Decode one prompt as the user wishes and strictly, and write the page of both.

    Args:
        path: the file to write.
        loaded: `target`, `decoder`, `options` and `uncovered`, as the command line loads them.
        prompt: the text that the user typed.
        ids: the same as token ids.
        request: other arguments of `Decoder.generate`.
    """
    decoder, tokenizer = loaded.decoder, loaded.target.tokenizer
    run = record(decoder, ids, tokenizer, **request)
    strict = strict_run(decoder, ids, tokenizer, **request)
    html = trace_page(
        prompt,
        run,
        strict,
        claim=own_claim(loaded.options, decoder, loaded.uncovered),
        certificate=certificate_table(decoder),
        provenance=provenance_table(decoder),
    )
    write_text(path, html)


def texts(run: Run) -> list[str]:
    """The texts of all tokens."""
    return [token.text for token in run.tokens]


def parts(run: Run, spans: list[Difference], first: bool) -> list[dict[str, Any]]:
    """The tokens of an answer in segments; those that differ from the other answer have a number."""
    own = [(span.number, span.left if first else span.right) for span in spans]
    return [
        {"number": number, "tokens": [shown(token) for token in run.tokens[span]]}
        for number, span in segments(len(run.tokens), own)
    ]


def compared(span: Difference, run: Run, strict: Run) -> dict[str, Any]:
    """One row of the table of differences."""
    left, right = ("".join(texts(run)[span.left]), "".join(texts(strict)[span.right]))
    return {"number": span.number, "texts": [visible(left), visible(right)]}


def named(certificate: Mapping[str, Any] | None, provenance: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The tables below the answers by their headings."""
    return {"Certificate": certificate or {}, "Provenance": provenance or {}}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as one, with dotted names; lists are written as JSON."""
    rows: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{name}.")
        else:
            rows[f"{prefix}{name}"] = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            )
    return {name: visible(text) for name, text in rows.items()}
