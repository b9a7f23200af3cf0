"""The command that certifies a rule."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gistgate.cli import show
from gistgate.cli.extras import module_of
from gistgate.cli.options import (
    AsJson,
    BlockLength,
    Draft,
    Drafter,
    DraftVocabulary,
    GateFolder,
    QuantiseDraft,
    RuleName,
    Seed,
    Settings,
    StopDrafting,
)


def calibrate(
    task: Annotated[str, typer.Option(help="Task that judges: a file in data/tasks or any lm-eval task.")],
    budget: Annotated[float, typer.Option(help="Loss that may be certified at most: 0.01 is one point.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Probability with which the certificate holds.")] = 0.95,
    gate: GateFolder = None,
    rule: RuleName = None,
    target: Annotated[str | None, typer.Option(help="Target model; default: the gate's.")] = None,
    draft: Draft = None,
    quantise_draft: QuantiseDraft = None,
    stop_drafting: StopDrafting = None,
    draft_vocabulary: DraftVocabulary = None,
    drafter: Drafter = None,
    settings: Settings = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    block: BlockLength = None,
    prompts: Annotated[int | None, typer.Option(help="Calibration prompts; default: twice the plan.", min=1)] = None,
    development: Annotated[int, typer.Option(help="Prompts that choose the settings to test.", min=1)] = 300,
    stop: Annotated[str, typer.Option(help="planned, lost (leave what loses), clear (either answer).")] = "lost",
    score: Annotated[str, typer.Option(help="task, capped (answers at their limit), logprob or judge.")] = "task",
    judge: Annotated[str | None, typer.Option(help="Judge model, for --score judge.")] = None,
    task_data: Annotated[str | None, typer.Option(help="Folder of .jsonl files that replaces the task's data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of certificate.json; default: the gate's.")] = None,
    draw: Annotated[int, typer.Option(help="Which calibration prompts: every number takes others.", min=1)] = 1,
    looks: Annotated[int, typer.Option(help="Planned looks at the same prompts; they divide the error.", min=1)] = 1,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together.", min=1)] = 32,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    options = {name: value for name, value in locals().items() if name not in ("settings", "as_json")}
    command = module_of("gistgate.integrations.lm_eval.calibrate", "calibrate")
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan and the progress are no JSON
        proof, path = command.certify(command.Options(**options, settings=tuple(settings)))
    if as_json:
        typer.echo(json.dumps({"path": str(path), "certificate": asdict(proof)}, default=str))
    else:
        typer.echo(f"{show.proved(proof)}\nwritten to {path}")
