"""The commands that decode: generate, trace and bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gistgate.cli.options import (
    AsJson,
    Chat,
    Dtype,
    Gguf,
    Length,
    Prompt,
    Prompts,
    Seed,
    Stops,
    System,
    TargetName,
    read_prompt,
    read_prompts,
    with_options,
)
from gistgate.core.utils import UserError
from gistgate.models.options import AUTO, MEASURED_BY, DecodeOptions, PromptFile

if TYPE_CHECKING:
    from gistgate.core.block import Acceptance, Block
    from gistgate.core.decoder import Decoder
    from gistgate.core.request import Row
    from gistgate.models.loading import Target


@with_options
def generate(
    target: TargetName, prompt: Prompt, *, options: DecodeOptions, dtype: Dtype = "auto", gguf: Gguf = None,
    max_new_tokens: Length = 256, stop: Stops = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    chat: Chat = False, system: System = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.", min=0)] = 0.0, seed: Seed = 0,
    in_shadow: Annotated[
        bool, typer.Option("--shadow", help="Decode strictly; say what the rule would have accepted.")
    ] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Continue one prompt; the text appears as it is decoded, counters go to standard error."""
    from gistgate.cli import show
    from gistgate.core.block import Sampling
    from gistgate.measure.shadow import shadow, summary
    from gistgate.measure.speed import settle_batches

    if in_shadow and options.speculate_up_to is not None:
        raise UserError("Shadow mode watches drafts, which --speculate-up-to may leave away. Leave one of both away.")
    loaded = load(target, dtype, options, PromptFile((), chat, system, temperature), gguf, measures=True)
    if in_shadow:
        loaded = replace(loaded, decoder=shadow(loaded.decoder))
    ids = loaded.target.encode(read_prompt(prompt), chat, system)
    request = {"sampling": Sampling(temperature), **loaded.request(max_new_tokens, stop)}
    if options.speculate_up_to == AUTO:
        settle_batches(loaded.decoder, [ids], **request)
    request["seeds"] = [seed]
    if as_json:
        answer = loaded.decoder.generate([ids], **request)[0]
        text = loaded.target.tokenizer.decode(answer.ids, skip_special_tokens=True)
        counters = {"finish": answer.finish, "statistics": answer.statistics.as_dict()}
        typer.echo(show.in_json({"text": text, "ids": answer.ids, **counters}))
    else:
        writer = Writer(loaded.target.tokenizer)  # compiled programs show nothing before they are done
        eager = loaded.decoder.engine.name == "eager"
        answer = (loaded.decoder.watched_by(writer) if eager else loaded.decoder).generate([ids], **request)[0]
        writer.finish(answer.ids)
    typer.echo(show.counted(answer), err=True)
    if options.guards:
        typer.echo(show.guarded(answer.statistics, options.guards), err=True)
    if in_shadow:
        typer.echo(summary(answer.statistics), err=True)


@with_options
def trace(
    target: TargetName, prompt: Prompt, *, options: DecodeOptions, dtype: Dtype = "auto", gguf: Gguf = None,
    max_new_tokens: Length = 256, stop: Stops = [],  # noqa: B006
    chat: Chat = False, system: System = None, as_json: AsJson = False,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="File for one HTML page with strict decoding beside it, instead of colours."),
    ] = None,
) -> None:  # fmt: skip
    """Continue one prompt and show why every token is there."""
    from gistgate.cli import show
    from gistgate.measure.trace import trace as traced

    if html is not None and as_json:
        raise UserError("--html and --json are two forms of one answer. Leave one of them out.")
    loaded, text = load(target, dtype, options, PromptFile((), chat, system), gguf), read_prompt(prompt)
    ids = loaded.target.encode(text, chat, system)
    if html is not None:
        from gistgate.demo.page import write_trace

        write_trace(html, loaded, text, ids, loaded.request(max_new_tokens, stop))
        typer.echo(f"{html} is written.")
        return
    answer, tokens = traced(loaded.decoder, ids, loaded.target.tokenizer, **loaded.request(max_new_tokens, stop))
    if as_json:
        typer.echo("\n".join(show.in_json(token.as_dict()) for token in tokens))
    else:
        show.say(show.coloured(tokens))
    typer.echo(show.counted(answer), err=True)


@with_options
def bench(
    target: TargetName, prompts: Prompts, *, options: DecodeOptions, dtype: Dtype = "auto", gguf: Gguf = None,
    max_new_tokens: Length = 128, chat: Chat = False, system: System = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Time plain, strict and the chosen decoding on the same prompts, interleaved prompt by prompt."""
    from gistgate.cli import show
    from gistgate.measure.speed import side_by_side

    asking = PromptFile(read_prompts(prompts), chat, system)
    loaded = load(target, dtype, options, asking, gguf)
    ids = asking.encode(loaded.target)
    clocks = side_by_side(loaded.decoder, ids, **loaded.request(max_new_tokens, []))
    if as_json:
        rows = [{"name": one.name, "seconds": one.seconds, "statistics": one.statistics.as_dict()} for one in clocks]
        typer.echo(json.dumps(rows))
    else:
        show.say(show.timed(clocks))


@dataclass(frozen=True)
class Loaded:
    """A target with the decoder around it."""

    target: Target
    decoder: Decoder
    options: DecodeOptions  # what the user says
    uncovered: str | None = None  # why the certificate beside the gate does not cover the requests, where it does not

    def request(self, max_new_tokens: int, stops: list[str]) -> dict[str, Any]:
        """Arguments of `Decoder.generate` that all prompts share."""
        return {"max_new_tokens": max_new_tokens, "stops": list(stops), "eos_ids": self.target.eos_ids}


def load(
    target: str, dtype: str, options: DecodeOptions, asking: PromptFile, gguf: str | None = None, measures: bool = False
) -> Loaded:
    """The target and its decoder; wrong names and requests are refused before anything is loaded.

    `measures` says that the command finds out itself up to how many rows speculation pays.
    """
    from gistgate.core.certificate import certificate_in_use, check_greedy, warn_uncovered
    from gistgate.core.decoder import Engine
    from gistgate.models.build import build_decoder, named_certificate
    from gistgate.models.loading import load_target

    Engine(options.engine)
    if options.speculate_up_to == AUTO and not measures:
        raise UserError(MEASURED_BY)
    if (certificate := named_certificate(options)) is not None:
        asking.check(certificate)
    loaded = load_target(target, dtype, gguf=gguf)
    if certificate is not None:
        asking.check(certificate, loaded)
    decoder, uncovered = build_decoder(loaded.model, loaded.tokenizer, options), None
    if decoder.certificate is not None:  # also one that nobody named, of `gistgate tune`
        asking.check(decoder.certificate, loaded)
    elif (beside := certificate_in_use(decoder)) is not None:
        uncovered = warn_uncovered(lambda: asking.check(beside, loaded))
    if options.segments is not None:
        uncovered = warn_uncovered(lambda: check_greedy(asking.temperature))
    return Loaded(loaded, decoder, options, uncovered)


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
        """Print what `text` adds to what stands there, to a terminal without control characters."""
        from gistgate.cli.show import inert

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
