"""The commands around decoding: doctor, fit-draft, draft-vocabulary, inspect, export, eval, demo
and tune.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gistgate.cli import show
from gistgate.cli.calibrate import Promise
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
    module_of,
    refuse_options,
)
from gistgate.core.files import write_atomic, write_json
from gistgate.core.utils import UserError, printable
from gistgate.models.options import DecodeOptions, read_prompts

if TYPE_CHECKING:
    from gistgate.measure.tune import Finding

DOCTOR_PROMPTS = 20  # prompts that are enough for one recommendation, and for one decision
TUNE_PROMPTS = 40
# Wishes that doctor ignores, which decodes strictly with whole drafts at every K, and that tune
# itself decides.
IGNORED = ("rule", "settings", "block", "segments", "guards", "stop_drafting", "speculate_up_to")
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


@decodes(max_new_tokens=64)
def doctor(
    target: TargetName,
    prompts: Prompts = "",
    *,
    task: Annotated[
        str | None, typer.Option(help="Task in place of PROMPTS, which also scores the answers.")
    ] = None,
    task_data: Annotated[
        str | None, typer.Option(help="Folder of .jsonl files that replaces the task's data.")
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run programs that the model writes.")
    ] = False,
    documents: Annotated[
        int, typer.Option(help="Documents of the task that are asked.", min=1)
    ] = DOCTOR_PROMPTS,
    asking: Asking,
    as_json: AsJson = False,
    options: DecodeOptions,
) -> None:
    """Measure what drafts cost and what looseness changes in 20 answers; say which K, and yes or no
    to a gate.

    It also says how many of these answers reached the limit of tokens, and which limit answers like
    them ask for.
    """
    from gistgate.measure import outlook
    from gistgate.models.build import HYBRID

    refuse_options(
        options,
        IGNORED,
        "is no part of what is measured: strict decoding with whole drafts at several K",
    )
    if options.drafter == HYBRID:
        raise UserError(
            f"'{HYBRID}' drafts in two ways, and one is measured at a time. Name model or suffix."
        )
    if bool(prompts) == (task is not None):
        raise UserError(
            "Doctor asks the prompts of a file or those of a task (--task). Name one of both."
        )
    if task is not None:
        judging = module_of("gistgate.certificates.decoder", "calibrate")
        how: dict[str, Any] = {
            "chat": asking.chat,
            "system": asking.system,
            "template": asking.template,
        }
        said = Promise(task=task, task_data=task_data, allow_code=allow_code, **how)
        spec = judging.spec_of(replace(said, max_new_tokens=asking.max_new_tokens), None)
        judge = judging.load_task(spec, judging.TASKS)
    free = replace(
        options, budget=None, confidence=None
    )  # doctor plans for them, and decodes strictly by itself
    loaded = load(target, asking, free, read_prompts(prompts)[:DOCTOR_PROMPTS] if prompts else ())
    ids = loaded.ids
    request = loaded.request
    scores = None
    if task is not None:
        models = loaded.decoder.parts.models
        tokenizer = loaded.target.tokenizer
        context = min(
            judging.context_of(model.config.get_text_config()) or judging.LONGEST
            for model in models
        )
        maker = judging.PromptMaker(judge, tokenizer, context)
        scorer = judging.TaskScore(judge, tokenizer)
        docs = judge.documents("train")
        order = Random("0 certificates")
        used = judging.used_problems(judge)
        chosen = list(islice(judging.fresh_prompts(maker, docs, order, used), documents))
        ids, scores = [one["ids"] for one in chosen], lambda at, ids: scorer.score(chosen[at], ids)
        request |= {"stops": [*judge.stops, *asking.stops], "max_new_tokens": judge.max_new_tokens}
    found = outlook.examine(loaded.decoder, ids, scores, **request)
    plan = (
        outlook.plan(found, options.budget or said.budget, options.confidence or said.confidence)
        if scores
        else ""
    )
    limit = outlook.limit_advice(**found.lengths)
    pays, advice = outlook.verdict(found)
    if as_json:
        told = {
            "lengths": {**found.lengths, "advice": limit},
            "advice": advice,
            "pays": pays,
            "plan": plan,
        }
        typer.echo(json.dumps({**asdict(found), **told, "prompts": len(ids)}))
        return
    show.say(show.promised(found))
    typer.echo("\n".join(filter(None, [plan, limit, advice])))


@decodes(max_new_tokens=128, stop=None)
def fit_draft(
    target: TargetName,
    prompts: Prompts,
    *,
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="JSON file to write, for --stop-drafting.")
    ],
    asking: Asking,
    options: DecodeOptions,
) -> None:
    """Measure when drafts stop paying: costs of the pair, and how often draft tokens of each
    probability survive.
    """
    fitting = module_of("gistgate.measure.fit_draft", "pipeline")
    loaded = load(target, asking, options, read_prompts(prompts))
    stopping = fitting.fit_stopping(loaded.decoder, loaded.ids, **loaded.request)
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
    draft: Annotated[str, typer.Option(help="Draft model: hub id, folder or GGUF file.")],
    size: Annotated[int, typer.Option(help="Tokens that the draft may propose.", min=1)],
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="JSON file to write, for --draft-vocabulary.")
    ],
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    draft_gguf: Annotated[str | None, DECODER["draft_gguf"]] = None,
) -> None:
    """Count the most frequent tokens of some texts; end and added tokens are always among them."""
    from gistgate.models.lighter import Subset
    from gistgate.models.loading import load_draft, load_target

    lines = [asked.text for asked in read_prompts(texts)]
    loaded = load_target(target, dtype, gguf=gguf)
    model = load_draft(draft, loaded.model, loaded.tokenizer, gguf=draft_gguf)
    counted = loaded.tokenizer(lines, add_special_tokens=False).input_ids
    subset = Subset.count(counted, size, loaded.tokenizer, model, loaded.eos_ids)
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
    others = {str(place): load_certificate(place) for place in sorted((gate / OTHERS).glob("*"))}
    if as_json:
        certificate = loaded.certificate and asdict(loaded.certificate)
        known = {
            "certificate": certificate,
            OTHERS: {place: asdict(other) for place, other in others.items()},
        }
        typer.echo(json.dumps({"config": asdict(loaded.config), **known}, default=str))
        return
    typer.echo(printable(show.described(loaded.config, loaded.certificate)))
    for place, other in others.items():
        typer.echo(printable(f"\n--certificate {place}\n{show.proved(other)}"))


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


@decodes()
def demo(
    target: TargetName,
    *,
    asking: Asking,
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    options: DecodeOptions,
) -> None:
    """Open a local page: type a prompt and watch loose and strict decoding token by token."""
    from gistgate.demo.page import claim
    from gistgate.demo.server import DemoSession, knob_values, launch, slider_rule

    models = (asking.gguf or target, options.draft_gguf or options.draft)
    heading = " and ".join(Path(str(name)).name for name in models if name is not None)

    def session() -> DemoSession:
        loaded = load(target, asking, options)
        rule = slider_rule(loaded.decoder)
        return DemoSession(
            loaded.decoder,
            loaded.target,
            rule,
            {
                one: claim(loaded.options, loaded.decoder, rule, one, loaded.uncovered)
                for one in knob_values(rule)
            },
            heading,
            asking.max_new_tokens,
            loaded.request,
            asking.chat,
            asking.system,
            asking.of(()).arguments,
        )

    launch(session, port, browser=browser, say=typer.echo)


@decodes(max_new_tokens=128)
def tune(
    target: TargetName,
    prompts: Prompts,
    *,
    also: Annotated[
        list[str],
        typer.Option(
            "--also", help="Another certificate of this pair, such as calibrate --out; repeatable."
        ),
    ] = (),  # type: ignore[assignment]
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
    from gistgate.measure.tune import Candidates
    from gistgate.measure.tune import tune as race
    from gistgate.models.build import TUNED
    from gistgate.models.loading import load_target

    refuse_options(options, CHOSEN, "is decided by tuning itself, or not timed by it")
    if (gate := options.gate) is None:
        raise UserError("Tuning keeps its choice in a gate's folder. Name the folder with --gate.")
    asked = asking.of(read_prompts(prompts)[:TUNE_PROMPTS])
    if (
        asked.stops is None
        and Path(gate).is_dir()
        and (beside := read_certificate(gate)) is not None
    ):
        asked = replace(asked, stops=beside.scope.get("stops"))
    loaded = load_target(target, asking.dtype, gguf=asking.gguf)
    candidates = Candidates(loaded, options, asked)
    every = candidates.all_of([gate, *also])
    ids = asked.encode(loaded)
    request = {
        "max_new_tokens": asking.max_new_tokens,
        "stops": asked.stops or (),
        "eos_ids": loaded.eos_ids,
    }
    found = race(every, ids, **request)
    for sentence in candidates.refused:
        typer.echo(f"Left out: {sentence}", err=True)
    if not as_json:
        show.say(show.raced(found))  # before anything is written, which may fail
    saved = save(Path(gate), found, len(ids)) if found.winner else None
    if saved is None and (Path(gate) / TUNED).exists():
        shutil.rmtree(Path(gate) / TUNED)
    if as_json:
        typer.echo(json.dumps({**told(found, len(ids)), "saved": saved and str(saved)}))
        return
    typer.echo(verdict(found, saved))


def told(found: Finding, prompts: int) -> dict[str, Any]:
    """The finding for machines, with where it was measured."""
    return {
        "winner": found.winner and found.winner.name,
        "screened": dict(found.screened),
        "to_plain": {name: asdict(ratio) for name, ratio in found.to_plain.items()},
        "to_strict": found.to_strict and asdict(found.to_strict),
        "strict": found.strict.name,
        "prompts": prompts,
        "machine": platform.processor() or platform.machine(),
    }


def save(gate: Path, found: Finding, prompts: int) -> Path:
    """Write the winner's certificate, narrowed to its one setting, and the measurement beside
    it.
    """
    from gistgate.export.write import FOLDER, write_code
    from gistgate.models.build import MEASURED, TUNED, chosen_among

    winner = found.winner
    made = datetime.now(UTC).date().isoformat()
    assert winner is not None and winner.certificate is not None and winner.point is not None
    certificate = replace(
        winner.certificate, points=(winner.point,), headline_budget=winner.point.budget
    )
    chosen = {"certificate": chosen_among(gate), "point": asdict(winner.point), "made": made}

    def write(part: Path) -> None:
        certificate.save(part)
        write_json(part / MEASURED, {**told(found, prompts), **chosen})

    write_atomic(gate / TUNED, write)
    if (gate / FOLDER).is_dir():  # the code for plain transformers has to hold what was chosen
        write_code(gate)
    return gate / TUNED


def verdict(found: Finding, saved: Path | None) -> str:
    """The decision in a sentence or two."""
    if found.loose is None or found.to_strict is None:
        return (
            "Nothing is certified for this pair and budget, so nothing is saved. Decode strictly."
        )
    ratio = found.to_strict
    figure = (
        f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times as fast as"
        f" '{found.strict.name}'"
    )
    if saved is None:
        return (
            f"Nothing certified beats strict decoding here: '{found.loose.name}' is {figure}."
            " Nothing is preferred."
        )
    return (
        f"'{found.loose.name}' is {figure}. It is saved in {saved}, and the gate decodes so where"
        " rule, setting, K and drafter are left open."
    )
