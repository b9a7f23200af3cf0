"""`gistgate tune`: which certified setting is fastest on this machine."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gistgate.cli import show
from gistgate.cli.options import (
    AsJson,
    Asking,
    Prompts,
    TargetName,
    decodes,
    needing,
    refuse_options,
)
from gistgate.core.files import write_atomic, write_json
from gistgate.core.utils import UserError
from gistgate.models.options import DecodeOptions, read_prompts

if TYPE_CHECKING:
    from gistgate.measure.tune import Finding

NUM_PROMPTS = 40  # prompts that are enough for one decision
# Wishes that tuning itself decides.
CHOSEN = (
    "rule",
    "settings",
    "block",
    "drafter",
    "certificate",
    "segments",
    "guards",
    "speculate_up_to",
)


@decodes(max_new_tokens=128)
def tune(
    target: TargetName,
    prompts: Prompts,
    *,
    asking: Asking,
    as_json: AsJson = False,
    options: DecodeOptions,
) -> None:
    """Time what is certified against plain and strict decoding here, and keep the winner in the
    gate's folder.

    The first 40 prompts are used; take prompts like those of calibration, such as
    data/prompts/development.jsonl.
    """
    from gistgate.coverage.certificate import read_certificate

    with needing("calibrate"):
        from gistgate.measure.tune import Candidates
        from gistgate.measure.tune import tune as race
    from gistgate.models.loading import load_target
    from gistgate.models.tuned import TUNED

    refuse_options(options, CHOSEN, "is decided by tuning itself, or not timed by it")
    if options.gate is None:
        raise UserError("Tuning keeps its choice in a gate's folder. Name the folder with --gate.")
    gate = Path(options.gate)
    file = asking.of(read_prompts(prompts)[:NUM_PROMPTS])
    loaded = load_target(target, asking.dtype, gguf=asking.gguf, quantise=asking.quantise)
    candidates = Candidates(loaded, options)
    certificate = read_certificate(gate)
    if file.stops is None and certificate is not None:
        file = replace(file, stops=certificate.scope.get("stops"))
    competing = candidates.all_of(file)
    ids = file.encode(loaded)
    finding = race(
        competing,
        ids,
        max_new_tokens=asking.max_new_tokens,
        stops=file.stops or (),
        eos_ids=loaded.eos_ids,
    )
    if candidates.refused:
        typer.echo(f"The certificate is left out: {candidates.refused}", err=True)
    if not as_json:
        show.say(show.raced(finding))  # before anything is written, which may fail
    report = report_of(finding, len(ids))
    saved = None
    if finding.winner:
        saved = save(gate, finding, report)
    elif (gate / TUNED).exists():
        shutil.rmtree(gate / TUNED)
    if as_json:
        typer.echo(json.dumps({**report, "saved": saved and str(saved)}))
    else:
        typer.echo(verdict(finding, saved))


def report_of(finding: Finding, prompts: int) -> dict[str, Any]:
    """The finding for machines, with where it was measured."""
    return {
        "winner": finding.winner and finding.winner.name,
        "screened": dict(finding.screened),
        "to_plain": {name: asdict(ratio) for name, ratio in finding.to_plain.items()},
        "to_strict": finding.to_strict and asdict(finding.to_strict),
        "strict": finding.strict.name,
        "prompts": prompts,
        "machine": platform.processor() or platform.machine(),
    }


def save(gate: Path, finding: Finding, report: dict[str, Any]) -> Path:
    """Write the certificate of the winner's setting, and the measurement beside it."""
    from gistgate.export.write import FOLDER, write_code
    from gistgate.models.tuned import MEASURED, TUNED, chosen_among

    winner = finding.winner
    assert winner is not None and winner.certificate is not None
    certificate = winner.certificate
    report = {
        **report,
        "certificate": chosen_among(gate),
        "made": datetime.now(UTC).date().isoformat(),
    }

    def write(part: Path) -> None:
        certificate.save(part)
        write_json(part / MEASURED, report)

    write_atomic(gate / TUNED, write)
    if (gate / FOLDER).is_dir():  # the code for plain transformers has to hold what was chosen
        write_code(gate)
    return gate / TUNED


def verdict(finding: Finding, saved: Path | None) -> str:
    """The decision in a sentence or two."""
    ratio = finding.to_strict
    if finding.loose is None or ratio is None:
        return (
            "Nothing is certified for this pair and budget, so nothing is saved. Decode strictly."
        )
    figure = (
        f"'{finding.loose.name}' is {ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times as"
        f" fast as '{finding.strict.name}'"
    )
    if saved is None:
        return f"Nothing certified beats strict decoding here: {figure}. Nothing is preferred."
    return (
        f"{figure}. It is saved in {saved}, and the gate decodes so where rule, setting, K and"
        " drafter are left open."
    )
