"""The page of one answer: every token with its reason, strict decoding beside it, numbers, certificate, provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gistgate.files import write_text
from gistgate.pages.alignment import Difference, differences, segments
from gistgate.pages.claims import certificate_table, own_claim, provenance_table
from gistgate.pages.rendering import TEMPLATES, render
from gistgate.pages.runs import Run, numbers, record, strict_run
from gistgate.pages.tokens import MEANINGS, shown, visible


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
        loaded: `target`, `decoder`, `wishes` and `uncovered`, as the command line loads them.
        prompt: the text that the user typed.
        ids: the same as token ids.
        request: other arguments of `Decoder.generate`.

    Raises:
        UserError: the request is refused, or the file cannot be written.
    """
    decoder, tokenizer = loaded.decoder, loaded.target.tokenizer
    run = record(decoder, ids, tokenizer, **request)
    strict = strict_run(decoder, ids, tokenizer, **request)
    html = trace_page(
        prompt,
        run,
        strict,
        claim=own_claim(loaded.wishes, decoder, loaded.uncovered),
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
