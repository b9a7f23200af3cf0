"""The commands that decode: generate, trace and bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gistgate.cli import show
from gistgate.cli.options import AsJson, Asking, Prompt, Prompts, Seed, TargetName, decodes
from gistgate.core.utils import UserError, printable
from gistgate.models.options import (
    DecodeOptions,
    EncodedPrompt,
    read_prompt,
    read_prompts,
)

if TYPE_CHECKING:
    from gistgate.core.block import Acceptance, Block
    from gistgate.core.decoder import Decoder
    from gistgate.core.request import Row
    from gistgate.coverage.covers import Coverage
    from gistgate.models.loading import Target


@decodes()
def generate(
    target: TargetName,
    prompt: Prompt,
    *,
    asking: Asking,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most probable token.", min=0)
    ] = 0.0,
    seed: Seed = 0,
    as_json: AsJson = False,
    options: DecodeOptions,
) -> None:
    """Continue one prompt; the text appears as it is decoded, counters go to standard error."""
    from gistgate.core.block import Sampling
    from gistgate.core.request import text_behind

    loaded = load(target, asking, options, [EncodedPrompt(read_prompt(prompt))], temperature)
    decoder = loaded.decoder
    text = partial(text_behind, loaded.target.tokenizer, loaded.ids[0], skip_special_tokens=True)
    request = {"sampling": Sampling(temperature), "seeds": [seed], **loaded.request}
    if as_json:
        answer = decoder.generate(loaded.ids, **request)[0]
        counters = {"finish": answer.finish, "statistics": answer.statistics.as_dict()}
        typer.echo(json.dumps({"text": text(answer.ids), "ids": answer.ids, **counters}))
    else:
        writer = Writer(text)
        if decoder.engine.name == "eager":  # compiled programs show nothing before they are done
            decoder = decoder.watched_by(writer)
        answer = decoder.generate(loaded.ids, **request)[0]
        writer.finish(answer.ids)
    typer.echo(show.counted(answer), err=True)
    if options.guards:
        typer.echo(show.guarded(answer.statistics, options.guards), err=True)


@decodes()
def trace(
    target: TargetName,
    prompt: Prompt,
    *,
    asking: Asking,
    as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File for one HTML page with strict decoding beside it, instead of colours.",
        ),
    ] = None,
    options: DecodeOptions,
) -> None:
    """Continue one prompt and show why every token is there."""
    from gistgate.measure.trace import trace as traced

    if html is not None and as_json:
        raise UserError("--html and --json are two forms of one answer. Leave one of them out.")
    text = read_prompt(prompt)
    loaded = load(target, asking, options, [EncodedPrompt(text)])
    if html is not None:
        from gistgate.measure.trace_page import write_trace

        write_trace(html, loaded, text)
        typer.echo(f"{html} is written.")
        return
    answer, tokens = traced(
        loaded.decoder, loaded.ids[0], loaded.target.tokenizer, **loaded.request
    )
    if as_json:
        typer.echo("\n".join(json.dumps(asdict(token)) for token in tokens))
    else:
        show.say(show.coloured(tokens))
    typer.echo(show.counted(answer), err=True)


@decodes(max_new_tokens=128, stop=None)
def bench(
    target: TargetName,
    prompts: Prompts,
    *,
    asking: Asking,
    as_json: AsJson = False,
    options: DecodeOptions,
) -> None:
    """Time plain, strict and the chosen decoding on the same prompts, interleaved prompt by
    prompt.
    """
    from gistgate.measure.speed import side_by_side

    loaded = load(target, asking, options, read_prompts(prompts))
    clocks, loops = side_by_side(loaded.decoder, loaded.ids, **loaded.request)
    if as_json:
        rows = [
            {"name": name, "seconds": time, "statistics": done.as_dict()}
            for name, (time, done) in clocks.items()
        ]
        typer.echo(json.dumps(rows))
    else:
        show.say(show.timed(clocks, loops))


@dataclass(frozen=True)
class Loaded:
    """A target with the decoder around it, and what it is asked."""

    target: Target
    decoder: Decoder
    coverage: Coverage  # the certificate that the decoder runs under
    options: DecodeOptions  # what the user says
    ids: list[list[int]]  # token ids of the prompts
    request: dict[str, Any]  # arguments of `Decoder.generate` that all prompts share
    # Why the certificate beside the gate does not cover the requests, where it does not.
    uncovered: str | None = None


def load(
    name: str,
    asking: Asking,
    options: DecodeOptions,
    prompts: Sequence[EncodedPrompt] = (),
    temperature: float = 0.0,
) -> Loaded:
    """The target and its decoder; requests that a named certificate does not cover are refused."""
    from gistgate.build import build
    from gistgate.compiled import ENGINES
    from gistgate.models.loading import load_target

    _ = ENGINES[options.engine]
    prompting = asking.of(prompts, temperature)
    target = load_target(name, asking.dtype, gguf=asking.gguf, quantise=asking.quantise)
    built = build(target.model, target.tokenizer, options)
    coverage = built.coverage
    uncovered = coverage.meet(prompting.ask(coverage.certified, target))
    request = {
        "max_new_tokens": asking.max_new_tokens,
        "stops": coverage.stops(prompting.stops),
        "eos_ids": target.eos_ids,
    }
    ids = prompting.encode(target)
    return Loaded(target, built.decoder, coverage, options, ids, request, uncovered)


class Writer:
    """An observer that prints what the rounds before the present one committed. Watches one row."""

    layers: Collection[str] = frozenset()
    wants_q: bool = False

    def __init__(self, text: Callable[[Sequence[int]], str]) -> None:
        self.text = text  # the text of an answer, and what of it stands there
        self.shown = ""

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        """Only the next round knows where the last one was cut, so its tokens appear then."""
        self.show(self.text(rows[0].answer).rstrip("\ufffd"))

    def show(self, text: str) -> None:
        """Print what `text` adds to what stands there, to a terminal without control characters."""
        if text.startswith(self.shown):
            added = text[len(self.shown) :]
            typer.echo(printable(added) if sys.stdout.isatty() else added, nl=False, color=True)
            self.shown = text

    def finish(self, ids: Sequence[int]) -> None:
        """Print the rest, or the whole answer on a new line where the printed part turned out to be
        cut off.
        """
        text = self.text(ids)
        if not text.startswith(self.shown):
            typer.echo("")
            self.shown = ""
        self.show(text)
        typer.echo("")
