"""The commands around decoding: fit-draft, draft-vocabulary, inspect, export and eval."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gistgate.cli import show
from gistgate.cli.decode import load
from gistgate.cli.options import (
    DECODER,
    AsJson,
    Asking,
    Dtype,
    Gguf,
    Prompts,
    TargetName,
    decodes,
    needing,
    plain_option,
)
from gistgate.core.files import write_atomic
from gistgate.core.utils import UserError, printable
from gistgate.models.options import DecodeOptions, read_prompts


@decodes(max_new_tokens=128, stop=None)
def fit_draft(
    target: TargetName,
    prompts: Prompts,
    *,
    out: Annotated[Path, plain_option("JSON file to write, for --stop-drafting.", dir_okay=False)],
    asking: Asking,
    options: DecodeOptions,
) -> None:
    """Measure when drafts stop paying: costs of the pair, and how often draft tokens of each
    probability survive.
    """
    with needing("pipeline"):
        from gistgate.measure.fit_draft import fit_stopping
    loaded = load(target, asking, options, read_prompts(prompts))
    stopping = fit_stopping(loaded.decoder, loaded.ids, **loaded.request)
    stopping.save(out)
    expected = stopping.measured["expected"]
    whole = expected["whole drafts"]
    ended = expected["policy"]
    typer.echo(
        f"{out} is written. By the measured costs, drafts of {whole['drafted']:.1f} tokens would"
        f" give {whole['speed']:.2f} times the speed of plain decoding on these prompts, and drafts"
        f" that end by the policy ({ended['drafted']:.1f} tokens) {ended['speed']:.2f} times."
    )
    if ended["speed"] <= 1:
        typer.echo(
            "Drafting does not pay for this pair: quantise the draft, or take a drafter without a"
            " model."
        )


def draft_vocabulary(
    target: TargetName,
    texts: Annotated[
        str,
        typer.Argument(
            help="Training texts as `gistgate doctor` reads prompts: prompts or, better, answers."
        ),
    ],
    *,
    draft: Annotated[str, plain_option("Draft model: hub id, folder or GGUF file.")],
    size: Annotated[int, plain_option("Tokens that the draft may propose.", min=1)],
    out: Annotated[
        Path, plain_option("JSON file to write, for --draft-vocabulary.", dir_okay=False)
    ],
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    draft_gguf: Annotated[str | None, DECODER["draft_gguf"]] = None,
) -> None:
    """Count the most frequent tokens of some texts; end and added tokens are always among them."""
    from gistgate.models.lighter import Subset
    from gistgate.models.loading import load_draft, load_target

    lines = [prompt.text for prompt in read_prompts(texts)]
    loaded = load_target(target, dtype, gguf=gguf)
    model = load_draft(draft, loaded.model, loaded.tokenizer, gguf=draft_gguf)
    ids = loaded.tokenizer(lines, add_special_tokens=False).input_ids
    subset = Subset.count(ids, size, loaded.tokenizer, model, loaded.eos_ids)
    subset.save(out)
    typer.echo(
        f"{out} is written: {size} tokens, which make up {subset.coverage:.2%} of these texts."
    )


def inspect(
    gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")], as_json: AsJson = False
) -> None:
    """Say what a gate is: its partners, features and certified settings, of other tasks as well."""
    from gistgate.coverage.certificate import OTHERS, load_certificate
    from gistgate.gate import Gate

    loaded = Gate.load(gate)
    places = sorted((gate / OTHERS).glob("*"))
    certificates = {str(place): load_certificate(place) for place in places}
    if as_json:
        entries = {
            "config": asdict(loaded.config),
            "certificate": loaded.certificate and asdict(loaded.certificate),
            OTHERS: {place: asdict(certificate) for place, certificate in certificates.items()},
        }
        typer.echo(json.dumps(entries, default=str))
        return
    typer.echo(printable(show.described(loaded.config, loaded.certificate)))
    for place, certificate in certificates.items():
        typer.echo(printable(f"\n--certificate {place}\n{show.proved(certificate)}"))


def export(
    gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
) -> None:
    """Copy a gate with its certificate and the code that `generate` of plain transformers needs for
    it.
    """
    from gistgate.export.write import FOLDER, write_code
    from gistgate.gate import Gate

    loaded = Gate.load(gate)
    if out.exists():
        raise UserError(f"{out} exists already. Name a new folder.")

    def write(part: Path) -> None:
        shutil.copytree(gate, part, ignore=shutil.ignore_patterns(FOLDER))
        write_code(part)

    write_atomic(out, write)
    typer.echo(printable(f"{out} is written.\n{show.described(loaded.config, loaded.certificate)}"))


def evaluate(context: typer.Context) -> None:
    """Run lm-eval with the model `gistgate`; takes lm-eval's own arguments (try: gistgate eval run
    --help).
    """
    from gistgate.lm_eval.__main__ import main as harness

    sys.argv = ["gistgate eval", *context.args]
    harness()
