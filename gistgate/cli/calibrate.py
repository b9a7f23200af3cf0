"""`gistgate calibrate`: certify a rule of one's own decoder, with or without a gate."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from gistgate.cli import show
from gistgate.cli.options import (
    Gguf,
    Quantise,
    decode_options,
    decoder_parameters,
    needing,
    option,
    plain_option,
    typed,
)
from gistgate.cli.promise import TASK, Promise, fields_of, written
from gistgate.models.options import DecodeOptions

PARTS = (
    "rule",
    "draft",
    "draft_gguf",
    "quantise_draft",
    "stop_drafting",
    "draft_vocabulary",
    "drafter",
    "settings",
    "block",
)
"""Options of the decoder."""


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate calibrate`."""

    task: Annotated[str, plain_option(TASK)]
    target: Annotated[str | None, option("Target model; default: the gate's.")] = None
    gguf: Gguf = None
    quantise: Quantise = None
    development: Annotated[int, option("Prompts that choose the settings to test.", min=1)] = 300
    score: Annotated[
        str,
        option(
            "What is compared: task (its metric), capped (answers cut at the limit), logprob or"
            " judge."
        ),
    ] = "task"
    growth: Annotated[
        float | None,
        option(
            "Largest growth of answers, as a share, to certify beside the loss; default: any.",
            min=0,
        ),
    ] = None
    fluency: Annotated[
        float | None,
        option(
            "Most nats by which a token of answers may be less probable to the target, to certify"
            " beside the loss; default: any.",
            min=0,
            max=1,
        ),
    ] = None
    judge: Annotated[str | None, option("Judge model, for --score judge.")] = None
    batch_size: Annotated[int, option("Rows decoded together.", min=1)] = 32
    decoding: DecodeOptions = field(default_factory=DecodeOptions)  # the gate and `PARTS`


def calibrate(as_json: bool, **given: Any) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    with needing("calibrate"):
        from gistgate.cli.calibration import certify
    decoding = replace(decode_options(given, PARTS), gate=given["gate"])
    written(partial(certify, Options(decoding=decoding, **given)), show.proved, as_json)


fields = [item for item in fields_of(Options) if item.name != "decoding"]
typed(calibrate, [*decoder_parameters(PARTS), *fields])
