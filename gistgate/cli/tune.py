"""The command that chooses the fastest certified setting for this machine."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gistgate.build.asking import Asking
from gistgate.build.wishes import Wishes
from gistgate.cli.options import (
    AsJson,
    Chat,
    Dtype,
    Gguf,
    Length,
    Prompts,
    Stops,
    System,
    TargetName,
    refuse_wishes,
    with_wishes,
)
from gistgate.cli.reading import read_prompts
from gistgate.errors import UserError

if TYPE_CHECKING:
    from gistgate.observing.tuning import Candidate, Finding

CHOSEN = ("rule", "settings", "block", "drafter", "certificate", "segments", "guards", "speculate_up_to")
"""Wishes that tuning itself decides, or that change nothing that it times."""
MOST = 40
"""Prompts that are enough for one decision."""


@with_wishes
def tune(
    target: TargetName,
    prompts: Prompts,
    *,
    wishes: Wishes,
    also: Annotated[
        list[str], typer.Option("--also", help="Another certificate of this pair, such as calibrate --out; repeatable.")
    ] = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    max_new_tokens: Length = 128,
    stop: Stops = [],  # noqa: B006
    chat: Chat = False,
    system: System = None,
    as_json: AsJson = False,
) -> None:
    """Time what is certified against plain and strict decoding here, and keep the winner in the gate's folder.

    The first 40 prompts are used; take prompts like those of calibration, such as data/prompts/development.jsonl.
    """
    from gistgate.build.candidates import Workshop
    from gistgate.build.models import load_target
    from gistgate.build.preference import forget
    from gistgate.cli import show
    from gistgate.forward.allocation import keep_freed_memory
    from gistgate.observing.tuning import tune as race

    gate = gate_of(wishes)
    asking = Asking(read_prompts(prompts)[:MOST], chat, system)
    loaded = load_target(target, dtype, gguf=gguf)
    keep_freed_memory(loaded.model.device)
    shop = Workshop(loaded, wishes, asking)
    candidates = shop.candidates([gate, *also])
    ids = asking.encode(loaded)
    found = race(candidates, ids, max_new_tokens=max_new_tokens, stops=stop, eos_ids=loaded.eos_ids)
    for sentence in shop.refused:
        typer.echo(f"Left out: {sentence}", err=True)
    if not as_json:
        show.say(show.raced(found))  # before anything is written, which may fail
    saved = save(Path(gate), found, len(ids)) if found.winner else None
    if saved is None:
        forget(gate)
    if as_json:
        typer.echo(json.dumps({**told(found, len(ids)), "saved": saved and str(saved)}))
        return
    typer.echo(verdict(found, saved))


def gate_of(wishes: Wishes) -> str:
    """The gate's folder.

    Raises:
        UserError: there is none, or the user decides what tuning is to decide.
    """
    refuse_wishes(wishes, CHOSEN, "is decided by tuning itself, or not timed by it")
    if wishes.gate is None:
        raise UserError("Tuning keeps its choice in a gate's folder. Name the folder with --gate.")
    return str(wishes.gate)


def told(found: Finding, prompts: int) -> dict[str, Any]:
    """The finding for machines, with where it was measured."""
    return {
        "winner": found.winner and found.winner.name,
        "screened": dict(found.screened),
        "to_plain": {name: ratio.as_dict() for name, ratio in found.to_plain.items()},
        "to_strict": found.to_strict and found.to_strict.as_dict(),
        "strict": found.strict.name,
        "prompts": prompts,
        "machine": platform.processor() or platform.machine(),
    }


def save(gate: Path, found: Finding, prompts: int) -> Path:
    """Write the winner's certificate, narrowed to its one setting, and the measurement beside it."""
    from gistgate.build.preference import MEASURED, TUNED, chosen_among
    from gistgate.files import write_atomic, write_json
    from gistgate.integrations.transformers.flatten import FOLDER, write_code

    winner: Candidate | None = found.winner
    assert winner is not None and winner.proof is not None and winner.point is not None
    point, made = winner.point, datetime.now(UTC).date().isoformat()
    proof = replace(winner.proof, points=(point,), headline_budget=point.budget)

    def write(part: Path) -> None:
        proof.save(part)
        chosen = {"certificate": chosen_among(gate), "point": asdict(point)}
        write_json(part / MEASURED, {**told(found, prompts), "made": made, **chosen})

    write_atomic(gate / TUNED, write)
    if (gate / FOLDER).is_dir():  # the code for plain transformers has to hold what was chosen
        write_code(gate)
    return gate / TUNED


def verdict(found: Finding, saved: Path | None) -> str:
    """The decision in a sentence or two."""
    if found.loose is None or found.to_strict is None:
        return "Nothing is certified for this pair and budget, so nothing is saved. Decode strictly."
    ratio = found.to_strict
    figure = f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times as fast as '{found.strict.name}'"
    if saved is None:
        return f"Nothing certified beats strict decoding here: '{found.loose.name}' is {figure}. Nothing is preferred."
    return (
        f"'{found.loose.name}' is {figure}. It is saved in {saved}, and the gate decodes so where rule, setting, K and "
        "drafter are left open."
    )
