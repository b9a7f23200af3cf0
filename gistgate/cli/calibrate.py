"""`gistgate calibrate`: one command for local decoders, exported gates and servers, built from one dataclass."""

import inspect
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.cli import show
from gistgate.cli.options import DECODER, PANEL, AsJson, Seed, module_of, option, parameter, typed
from gistgate.core.utils import UserError

SERVERS = "Two servers"
asked, served = partial(option, panel=None), partial(option, panel=SERVERS)


@dataclass(frozen=True)
class Options:
    """Those of the decoder, but for the gate, mean nothing where two servers are compared, and the reverse."""

    task: Annotated[str, asked("Task that judges: a file in data/tasks or any lm-eval task.")]
    budget: Annotated[float, asked("Largest loss to certify, as a share: 0.01 is one point.")] = 0.02
    confidence: Annotated[float, asked("Probability with which the certificate holds.")] = 0.95
    gate: Annotated[str | None, DECODER["gate"]] = None
    rule: Annotated[str | None, DECODER["rule"]] = None
    target: Annotated[str | None, option("Target model; default: the gate's.")] = None
    gguf: Annotated[str | None, option("GGUF file in the target's folder or repository.", "--gguf")] = None
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
        str, option("What is compared: task (its metric), capped (answers cut at the limit), logprob or judge.")
    ] = "task"
    judge: Annotated[str | None, option("Judge model, for --score judge.")] = None
    batch_size: Annotated[int, option("Rows decoded together.", min=1)] = 32
    prompts: Annotated[
        int | None,
        asked("Calibration prompts; default: twice what the budget needs if 5 % of the answers differ.", min=1),
    ] = None
    stop: Annotated[
        str, asked("When a setting ends early: planned (never), lost (once it fails), clear (once it fails or holds).")
    ] = "lost"
    task_data: Annotated[str | None, asked("Folder of .jsonl files that replaces the task's data.")] = None
    allow_code: Annotated[bool, asked("Run programs that the model writes.", "--allow-code")] = False
    chat: Annotated[bool | None, asked("Ask in the form of a chat; default: the gate's way.")] = None
    system: Annotated[str | None, asked('System text; default: the gate\'s; "" for none.', show_default=False)] = None
    num_fewshot: Annotated[
        int | None, asked("Solved examples in front; default: the gate's, else the task's own.", min=0)
    ] = None
    metric: Annotated[
        str | None, asked("Metric and filter that judge, such as exact_match,strict-match; default: the gate's.")
    ] = None
    max_new_tokens: Annotated[
        int | None, asked("Longest answer where the task names none, in tokens; default: the gate's, else 256.", min=1)
    ] = None
    out: Annotated[Path | None, asked("Folder of the certificate; default: the gate's.")] = None
    draw: Annotated[
        int, asked("Number of the set of calibration prompts; another number takes other prompts.", min=1)
    ] = 1
    looks: Annotated[int, asked("Planned looks at the same prompts; they divide the error.", min=1)] = 1
    seed: Seed = 0
    strict_endpoint: Annotated[str | None, served("The reference server, such as http://HOST:8000/v1.")] = None
    loose_endpoint: Annotated[str | None, served("The server that is certified against it.")] = None
    strict_model: Annotated[str | None, served("Model of the reference server; default: its only one.")] = None
    loose_model: Annotated[str | None, served("Model of the other server; default: its only one.")] = None
    same_model: Annotated[
        list[str], served("Another name that the answers may give the model asked for; repeatable.")
    ] = ()  # type: ignore[assignment]
    strict_body: Annotated[str, served("Further entries of every request to the reference server, as JSON.")] = "{}"
    loose_body: Annotated[str, served("Further entries of every request to the other server, as JSON.")] = "{}"
    concurrent: Annotated[int, served("Requests that are under way at the same time.", min=1)] = 8


FIELDS = inspect.signature(Options, eval_str=True).parameters


def calibrate(**given: Any) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json.

    With --strict-endpoint and --loose-endpoint certify instead one server against another, whatever runs behind it.
    """
    as_json = given.pop("as_json")
    lists: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    options = Options(**{**given, **lists})
    servers = bool(options.strict_endpoint or options.loose_endpoint)
    for name, field in FIELDS.items():
        is_foreign = field.annotation.__metadata__[-1].rich_help_panel == (PANEL if servers else SERVERS)
        if is_foreign and name != "gate" and getattr(options, name) != field.default:
            where = "where two servers are compared" if servers else "unless two servers are compared"
            shown = "set" if name == "settings" else name.replace("_", "-")
            raise UserError(f"--{shown} means nothing {where}. Leave it out.")
    name, extra = ("gistgate.endpoints", "endpoints") if servers else ("gistgate.lm_eval.calibrate", "calibrate")
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan and the progress are no JSON
        certificate, path = module_of(name, extra).certify(options)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "certificate": asdict(certificate)}, default=str))
    else:
        typer.echo(f"{(show.compared if servers else show.proved)(certificate)}\nwritten to {path}")
    if servers and not certificate.certified:
        raise UserError(certificate.refusal)


typed(calibrate, [*FIELDS.values(), parameter("as_json", AsJson, False)])
