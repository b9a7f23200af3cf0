"""The command that certifies a rule."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Collection
from contextlib import redirect_stdout
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.cli import show
from gistgate.cli.options import (
    AsJson,
    BlockLength,
    Draft,
    Drafter,
    DraftGguf,
    DraftVocabulary,
    GateFolder,
    Gguf,
    QuantiseDraft,
    RuleName,
    Seed,
    Settings,
    StopDrafting,
    module_of,
)
from gistgate.core.utils import UserError

OF_SERVERS = (
    "task", "budget", "confidence", "prompts", "stop", "task_data", "allow_code", "out", "draw", "looks", "seed",
    "strict_endpoint", "loose_endpoint", "strict_model", "loose_model", "strict_body", "loose_body", "chat",
    "system", "num_fewshot", "metric", "max_new_tokens", "concurrent", "gate",
)  # fmt: skip
"""Options that mean something where two servers are compared."""


def served(help: str, **limits: Any) -> Any:
    """An option that compares two servers."""
    return typer.Option(help=help, rich_help_panel="Two servers", **limits)


def calibrate(
    task: Annotated[str, typer.Option(help="Task that judges: a file in data/tasks or any lm-eval task.")],
    budget: Annotated[float, typer.Option(help="Largest loss to certify, as a share: 0.01 is one point.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Probability with which the certificate holds.")] = 0.95,
    gate: GateFolder = None,
    rule: RuleName = None,
    target: Annotated[str | None, typer.Option(help="Target model; default: the gate's.")] = None,
    gguf: Gguf = None,
    draft: Draft = None,
    draft_gguf: DraftGguf = None,
    quantise_draft: QuantiseDraft = None,
    stop_drafting: StopDrafting = None,
    draft_vocabulary: DraftVocabulary = None,
    drafter: Drafter = None,
    settings: Settings = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    block: BlockLength = None,
    prompts: Annotated[
        int | None,
        typer.Option(
            help="Calibration prompts; default: twice what the budget needs if 5 % of the answers differ.", min=1
        ),
    ] = None,
    development: Annotated[int, typer.Option(help="Prompts that choose the settings to test.", min=1)] = 300,
    stop: Annotated[
        str,
        typer.Option(
            help="When a setting ends early: planned (never), lost (once it fails), clear (once it fails or holds)."
        ),
    ] = "lost",
    score: Annotated[
        str,
        typer.Option(help="What is compared: task (its metric), capped (answers cut at the limit), logprob or judge."),
    ] = "task",
    judge: Annotated[str | None, typer.Option(help="Judge model, for --score judge.")] = None,
    task_data: Annotated[str | None, typer.Option(help="Folder of .jsonl files that replaces the task's data.")] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run programs that the model writes.")] = False,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Ask in the form of a chat; default: the gate's way."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help='System text; default: the gate\'s; "" for none.', show_default=False)
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(help="Solved examples in front; default: the gate's, else the task's own.", min=0),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric and filter that judge, such as exact_match,strict-match; default: the gate's."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer where the task names none, in tokens; default: the gate's, else 256.", min=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of certificate.json; default: the gate's.")] = None,
    draw: Annotated[
        int, typer.Option(help="Number of the set of calibration prompts; another number takes other prompts.", min=1)
    ] = 1,
    looks: Annotated[int, typer.Option(help="Planned looks at the same prompts; they divide the error.", min=1)] = 1,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together.", min=1)] = 32,
    seed: Seed = 0,
    as_json: AsJson = False,
    strict_endpoint: Annotated[str | None, served("The reference server, such as http://HOST:8000/v1.")] = None,
    loose_endpoint: Annotated[str | None, served("The server that is certified against it.")] = None,
    strict_model: Annotated[str | None, served("Model of the reference server; default: its only one.")] = None,
    loose_model: Annotated[str | None, served("Model of the other server; default: its only one.")] = None,
    strict_body: Annotated[str, served("Further entries of every request to the reference server, as JSON.")] = "{}",
    loose_body: Annotated[str, served("Further entries of every request to the other server, as JSON.")] = "{}",
    concurrent: Annotated[int, served("Requests that are under way at the same time.", min=1)] = 8,
) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json.

    With --strict-endpoint and --loose-endpoint certify instead one server against another, whatever runs behind it.
    """
    options = {name: value for name, value in locals().items() if name != "as_json"}
    if strict_endpoint or loose_endpoint:
        compare_servers(options, as_json)
        return
    command = module_of("gistgate.lm_eval.calibrate", "calibrate")
    known = {one.name for one in fields(command.Options)}
    refuse_others(options, known, "unless two servers are compared")
    options = {name: value for name, value in options.items() if name in known and name != "settings"}
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan and the progress are no JSON
        certificate, path = command.certify(command.Options(**options, settings=tuple(settings)))
    if as_json:
        typer.echo(json.dumps({"path": str(path), "certificate": asdict(certificate)}, default=str))
    else:
        typer.echo(f"{show.proved(certificate)}\nwritten to {path}")


def refuse_others(options: dict[str, Any], known: Collection[str], where: str) -> None:
    """Refuse what the user said and nobody would read.

    Raises:
        UserError: an option has another value than its default, and is none of `known`.
    """
    usual = {name: one.default for name, one in inspect.signature(calibrate).parameters.items()}
    for name, value in options.items():
        if name not in known and value != usual[name]:
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} means nothing {where}. Leave it out.")


def compare_servers(options: dict[str, Any], as_json: bool) -> None:
    """Certify one server against another.

    Raises:
        UserError: one of the two addresses is missing, or options speak of models that no server asks for.
    """
    if not (options["strict_endpoint"] and options["loose_endpoint"]):
        raise UserError("Two servers are compared: name both --strict-endpoint and --loose-endpoint.")
    refuse_others(options, OF_SERVERS, "where two servers are compared")
    command = module_of("gistgate.endpoints", "endpoints")
    given = {name: options[name] for name in OF_SERVERS}
    given |= {"out": given["out"] or Path()}
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        certificate, path = command.certify(command.Options(**given))
    if as_json:
        typer.echo(json.dumps({"path": str(path), "certificate": asdict(certificate)}))
    else:
        typer.echo(f"{show.compared(certificate)}\nwritten to {path}")
    if not certificate.certified:
        raise UserError(certificate.refusal or "Nothing is certified.")
