"""`gistgate calibrate`: certify a rule of one's own decoder, with or without a gate."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from gistgate.cli import show
from gistgate.cli.options import DECODER, needing, option, plain_option, typed
from gistgate.cli.promise import TASK, Promise, fields_of, written
from gistgate.models.options import DecodeOptions, parse_settings


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate calibrate`."""

    task: Annotated[str, plain_option(TASK)]
    rule: Annotated[str | None, DECODER["rule"]] = None
    target: Annotated[str | None, option("Target model; default: the gate's.")] = None
    gguf: Annotated[
        str | None, option("GGUF file in the target's folder or repository.", "--gguf")
    ] = None
    draft: Annotated[str | None, DECODER["draft"]] = None
    draft_gguf: Annotated[str | None, DECODER["draft_gguf"]] = None
    quantise_draft: Annotated[str | None, DECODER["quantise_draft"]] = None
    stop_drafting: Annotated[str | None, DECODER["stop_drafting"]] = None
    draft_vocabulary: Annotated[str | None, DECODER["draft_vocabulary"]] = None
    drafter: Annotated[str | None, DECODER["drafter"]] = None
    settings: Annotated[list[str], DECODER["settings"]] = ()  # type: ignore[assignment]
    block: Annotated[int | None, DECODER["block"]] = None
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
    judge: Annotated[str | None, option("Judge model, for --score judge.")] = None
    batch_size: Annotated[int, option("Rows decoded together.", min=1)] = 32

    @property
    def decoding(self) -> DecodeOptions:
        """The parts of the decoder, but for the file of the draft."""
        return DecodeOptions(
            draft=self.draft,
            quantise_draft=self.quantise_draft,
            draft_vocabulary=self.draft_vocabulary,
            stop_drafting=self.stop_drafting,
            drafter=self.drafter,
            gate=self.gate,
            rule=self.rule,
            settings=parse_settings(self.settings),
            block=self.block,
        )


def calibrate(as_json: bool, **given: Any) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    with needing("calibrate"):
        from gistgate.cli.calibration import certify
    written(partial(certify, Options(**given)), show.proved, as_json)


typed(calibrate, fields_of(Options))
