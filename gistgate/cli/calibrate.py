"""`gistgate calibrate`: certify a rule of one's own decoder, with or without a gate."""

import inspect
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.cli import show
from gistgate.cli.options import (
    DECODER,
    AsJson,
    Seed,
    Template,
    module_of,
    option,
    parameter,
    typed,
)
from gistgate.core.utils import UserError

asked = partial(option, panel=None)
ENDS = (
    "When a test ends early: planned (never), lost (once the budget is lost), clear (once it is"
    " lost or kept)."
)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is asked and promised, of an own decoder and of servers alike."""

    task: Annotated[
        str | None, asked("Task that judges: a file in data/tasks or any lm-eval task.")
    ] = None
    budget: Annotated[float, asked("Largest loss to certify, as a share: 0.01 is one point.")] = (
        0.02
    )
    confidence: Annotated[float, asked("Probability with which the certificate holds.")] = 0.95
    gate: Annotated[str | None, DECODER["gate"]] = None
    prompts: Annotated[
        int | None, asked("Calibration prompts; default: twice what the plan asks for.", min=1)
    ] = None
    stop: Annotated[str, asked(ENDS)] = "lost"
    task_data: Annotated[
        str | None, asked("Folder of .jsonl files that replaces the task's data.")
    ] = None
    allow_code: Annotated[bool, asked("Run programs that the model writes.", "--allow-code")] = (
        False
    )
    chat: Annotated[bool | None, asked("Ask in the form of a chat; default: the gate's way.")] = (
        None
    )
    system: Annotated[
        str | None, asked('System text; default: the gate\'s; "" for none.', show_default=False)
    ] = None
    template: Template = ()  # type: ignore[assignment]
    num_fewshot: Annotated[
        int | None, asked("Solved examples; default: the gate's, else the task's own.", min=0)
    ] = None
    metric: Annotated[
        str | None,
        asked("Metric and filter, such as exact_match,strict-match; default: the gate's."),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        asked(
            "Longest answer where the task names none, in tokens; default: the gate's, else 256.",
            min=1,
        ),
    ] = None
    out: Annotated[Path | None, asked("Folder of the certificate; default: the gate's.")] = None
    draw: Annotated[
        int, asked("Number of the set of calibration prompts; another takes other prompts.", min=1)
    ] = 1
    looks: Annotated[
        int, asked("Planned looks at the same prompts; they divide the error.", min=1)
    ] = 1
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate calibrate`."""

    task: Annotated[str, asked("Task that judges: a file in data/tasks or any lm-eval task.")]
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


PAIRS = (
    f"--{side}-{name}" for side in ("strict", "loose") for name in ("endpoint", "model", "body")
)
MOVED = Annotated[list[str], typer.Option(*PAIRS, "--same-model", "--concurrent", hidden=True)]


def calibrate(moved: list[str], **given: Any) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    if moved:
        raise UserError(
            "Two servers are compared by `gistgate certify --strict URL --loose URL --task TASK`."
        )
    proved(given, Options, "gistgate.certificates.decoder", "calibrate", show.proved)


def proved(
    given: dict[str, Any], kind: type[Any], module: str, extra: str, shown: Callable[[Any], str]
) -> Any:
    """The certificate that the module makes with these options, shown."""
    as_json = given.pop("as_json")
    options = kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
    )
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan is no JSON
        certificate, path = module_of(module, extra).certify(options)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "certificate": asdict(certificate)}, default=str))
    else:
        typer.echo(f"{shown(certificate)}\nwritten to {path}")
    return certificate


def fields_of(kind: type[Any]) -> list[inspect.Parameter]:
    """The options of a command, of which --json is the last."""
    return [
        *inspect.signature(kind, eval_str=True).parameters.values(),
        parameter("as_json", AsJson, False),
    ]


typed(calibrate, [*fields_of(Options), parameter("moved", MOVED, ())])
