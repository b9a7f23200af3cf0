"""The commands that make drafts cheaper: when they end, and from which tokens they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gistgate.build.asking import Asking
from gistgate.build.wishes import Wishes
from gistgate.cli.options import Chat, DraftGguf, Dtype, Gguf, Length, Prompts, System, TargetName, with_wishes
from gistgate.cli.reading import read_prompts


@with_wishes
def fit_draft(
    target: TargetName,
    prompts: Prompts,
    *,
    wishes: Wishes,
    out: Annotated[Path, typer.Option(dir_okay=False, help="JSON file to write, for --stop-drafting.")],
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    max_new_tokens: Length = 128,
    chat: Chat = False,
    system: System = None,
) -> None:
    """Measure when drafts stop paying: costs of the pair, and how often draft tokens of each probability survive."""
    from gistgate.cli.decode import load
    from gistgate.observing.drafting import fit_stopping

    asking = Asking(read_prompts(prompts), chat, system)
    loaded = load(target, dtype, wishes, asking, gguf)
    ids = asking.encode(loaded.target)
    stopping = fit_stopping(loaded.decoder, ids, **loaded.request(max_new_tokens, []))
    stopping.save(out)
    expected = stopping.measured["expected"]
    whole, ended = expected["whole drafts"], expected["policy"]
    typer.echo(
        f"{out} is written. By the measured costs, drafts of {whole['drafted']:.1f} tokens would give "
        f"{whole['speed']:.2f} times the speed of plain decoding on these prompts, and drafts that end by the policy "
        f"({ended['drafted']:.1f} tokens) {ended['speed']:.2f} times."
    )
    if ended["speed"] <= 1:
        typer.echo("Drafting does not pay for this pair: quantise the draft, or take a drafter without a model.")


def draft_vocabulary(
    target: TargetName,
    texts: Annotated[
        str, typer.Argument(help="Training texts as `gistgate doctor` reads prompts: prompts or, better, answers.")
    ],
    *,
    draft: Annotated[str, typer.Option(help="Draft model: hub id, folder or GGUF file.")],
    size: Annotated[int, typer.Option(help="Tokens that the draft may propose.", min=1)],
    out: Annotated[Path, typer.Option(dir_okay=False, help="JSON file to write, for --draft-vocabulary.")],
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    draft_gguf: DraftGguf = None,
) -> None:
    """Count the most frequent tokens of some texts; end and added tokens are always among them."""
    from gistgate.build.models import load_draft, load_target
    from gistgate.forward.allocation import keep_freed_memory
    from gistgate.forward.output import Subset

    lines = [asked.text for asked in read_prompts(texts)]
    loaded = load_target(target, dtype, gguf=gguf)
    keep_freed_memory(loaded.model.device)
    model = load_draft(draft, loaded.model, loaded.tokenizer, gguf=draft_gguf)
    counted = loaded.tokenizer(lines, add_special_tokens=False).input_ids
    subset = Subset.count(counted, size, loaded.tokenizer, model, loaded.eos_ids)
    subset.save(out)
    typer.echo(f"{out} is written: {size} tokens, which make up {subset.coverage:.2%} of these texts.")
