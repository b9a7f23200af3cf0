"""The page of one answer: every token with its reason, strict decoding beside it, and numbers."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import count
from pathlib import Path
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.files import write_text
from gistgate.core.request import Statistics
from gistgate.core.utils import UNSEEN
from gistgate.coverage.choose import usable
from gistgate.coverage.covers import covers
from gistgate.measure.trace import TracedToken, trace

STRICT = "strict"  # name of the run that strict decoding makes
TEMPLATES = Path(__file__).parent / "templates"
MEANINGS = {
    "strict": "draft token that the strict rule accepts",
    "loose": "draft token that only the loose rule accepts",
    "carried": "strict accept behind a loose one of the same block",
    "own": "token that the target adds itself",
    "loop": "strict accept while the loop guard keeps the gate closed",
}
"""What the legend says about each reason."""


@dataclass(frozen=True)
class Run:
    """A traced answer."""

    name: str  # heading of the answer, such as the rule with its setting
    tokens: Sequence[TracedToken]
    statistics: Statistics

    @property
    def texts(self) -> list[str]:
        """The texts of the tokens."""
        return [token.text for token in self.tokens]

    def for_page(self) -> dict[str, Any]:
        """Return what the template shows of the answer."""
        tokens = [shown(token) for token in self.tokens]
        counters = numbers(self.statistics)
        return {"name": self.name, "numbers": counters, "tokens": tokens, "texts": self.texts}


def rule_name(rule: Any) -> str:
    """Return the rule's id and the value of its knob."""
    knob = rule.knob
    return str(rule.id) if knob is None else f"{rule.id}, {knob} {getattr(rule, knob):g}"


def numbers(statistics: Statistics) -> dict[str, str]:
    """Return what a reader compares, formatted; seconds are those of this one run."""
    seconds = statistics.seconds["total"]
    return {
        "tokens": str(statistics.tokens),
        "target forwards": str(statistics.forwards),
        "mean accepted length (tau)": f"{statistics.mean_accepted_length:.2f}",
        "loose tokens per hundred": f"{statistics.loose_per_100:.1f}",
        "seconds": f"{seconds:.2f}",
        "tokens per second": f"{statistics.tokens / seconds:.1f}",
    }


def aligned(loose: Sequence[str], strict: Sequence[str]) -> list[dict[str, Any]]:
    """Return the spans in which two answers agree or differ, given as the texts of their tokens;
    those that differ are numbered from 1.
    """
    places = count(1)
    codes = SequenceMatcher(None, loose, strict, autojunk=False).get_opcodes()
    return [
        {"number": None if kind == "equal" else next(places), "loose": [a, b], STRICT: [c, d]}
        for kind, a, b, c, d in codes
    ]


def claim(loaded: Any) -> str | None:
    """Return what the certificate says about the rule that decodes, and about the request; None
    where decoding is strict.
    """
    decoder = loaded.decoder
    coverage = loaded.coverage
    rule = decoder.rule
    if rule.knob is None:
        return None
    if loaded.options.segments:
        return "The certificate of segments lies in their folder; this page does not read it."
    if decoder.drafter is None or not decoder.block:
        return "Decoding is plain, so that nothing can be lost."
    if coverage.certificate is None:
        return "Not certified: there is no certificate."
    wish = replace(loaded.options.wish, names_certificate=coverage.is_named)
    certificate = usable(coverage.certificate, wish)
    doubts = [difference.sentence for difference in covers(certificate, coverage.setup)]
    if loaded.uncovered is not None:
        doubts.append(loaded.uncovered)
    if doubts:
        return f"Not certified: {'; '.join(doubts)}."
    value = getattr(rule, rule.knob)
    point = next(p for p in certificate.certified if p.settings[rule.knob] == value)
    # the budget first: the point's own bound was computed after the prompts had chosen the point
    return (
        f"Certified: loses at most {100 * point.budget:g} points with {100 * point.confidence:g} %"
        f" confidence (bound {100 * point.bound:.2f}), from {point.n} prompts."
    )


def render(template: Path, *, script: str = "", styles: Sequence[Path], **values: Any) -> str:
    """Fill a template, which may name those of this folder; all `values` are escaped.

    The content security policy allows `script` and `styles` alone, which stand inside the page.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader([template.parent, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    style = "\n".join(file.read_text(encoding="utf-8") for file in styles)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; connect-src"
        f" 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'"
    )
    page = environment.get_template(template.name)
    return page.render(script=Markup(script), style=Markup(style), policy=policy, **values)


def digest(text: str) -> str:
    """Return the hash by which a content security policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def shown(token: TracedToken) -> dict[str, str]:
    """Return text, reason and note of a token (why it is there, what gate and target think), ready
    for a page; unescaped.
    """
    gate = "" if token.kept is None else f", gate {token.kept:.3f}"
    note = f"{token.reason}{gate}, target {token.probability:.3f}"
    return {"text": visible(token.text), "reason": token.reason, "note": note}


def visible(text: str) -> str:
    """Return the text with characters that cannot be seen, or that reorder others, written as their
    code points.
    """
    named = UNSEEN.sub(lambda character: f"⟨U+{ord(character[0]):04X}⟩", text)
    return named.replace("\n", "↵\n") or "∅"


def trace_page(prompt: str, loose: Run, strict: Run, claim: str | None) -> str:
    """Return a whole HTML document, which loads nothing: both answers, aligned and explained, under
    a sentence about what is certified for the setting of the loose one.
    """
    return render(
        TEMPLATES / "trace.html.j2",
        script=(TEMPLATES / "tokens.js").read_text(encoding="utf-8"),
        styles=(TEMPLATES / "page.css", TEMPLATES / "tokens.css"),
        prompt=visible(prompt),
        claim=claim,
        meanings=MEANINGS,
        answers={"loose": loose.for_page(), STRICT: strict.for_page()},
        spans=aligned(loose.texts, strict.texts),
        visible=visible,
    )


def write_trace(path: str | Path, loaded: Any, prompt: str) -> None:
    """Decode the loaded prompt as the user of the command line wishes and strictly, and write the
    page of both.
    """
    decoder = loaded.decoder

    def run(name: str, way: Decoder) -> Run:
        answer, tokens = trace(way, loaded.ids[0], loaded.target.tokenizer, **loaded.request)
        return Run(name, tokens, answer.statistics)

    loose = run(rule_name(decoder.rule), decoder)
    strict = run(STRICT, decoder.strict())
    write_text(path, trace_page(prompt, loose, strict, claim(loaded)))
