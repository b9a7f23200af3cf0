"""Standard output that shows an answer while it is decoded."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import typer

from gistgate.block import Acceptance, Block
from gistgate.cli.terminal import inert
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Generation, Row


class Writer:
    """An observer that prints what the rounds before the present one committed. Watches one row."""

    layers: Collection[str] = frozenset()
    wants_q: bool = False

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.shown = ""

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        """Only the next round knows where the last one was cut, so its tokens appear then."""
        self.show(self.text(rows[0].answer).rstrip("\ufffd"))

    def text(self, ids: Sequence[int]) -> str:
        """An answer without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def show(self, text: str) -> None:
        """Print what `text` adds, to a terminal without control characters.

        A text that does not continue what stands there already waits.
        """
        if text.startswith(self.shown):
            added = text[len(self.shown) :]
            typer.echo(inert(added) if sys.stdout.isatty() else added, nl=False, color=True)
            self.shown = text

    def finish(self, ids: Sequence[int]) -> None:
        """Print the rest, or the whole answer on a new line where the printed part turned out to be cut off."""
        text = self.text(ids)
        if not text.startswith(self.shown):
            typer.echo("")
            self.shown = ""
        self.show(text)
        typer.echo("")


def write_streaming(decoder: Decoder, ids: Sequence[int], tokenizer: Any, request: dict[str, Any]) -> Generation:
    """Continue one prompt and print it as it comes; compiled programs show nothing before they are done."""
    writer = Writer(tokenizer)
    watched = decoder.watched_by(writer) if decoder.engine.name == "eager" else decoder
    answer = watched.generate([ids], **request)[0]
    writer.finish(answer.ids)
    return answer
