"""The command line: gistgate generate | inspect | calibrate | trace | eval | bench.

Errors are one sentence and exit status 1.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.errors import UserError

app = typer.Typer(
    help="Speculative decoding that keeps a draft token when it keeps the meaning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TargetName = Annotated[str, typer.Argument(help="Target model: hub id or folder.", metavar="TARGET")]
Prompt = Annotated[str, typer.Argument(help="What to continue; - reads it from standard input.", metavar="PROMPT")]
Draft = Annotated[str | None, typer.Option(help="Draft model: hub id or folder.")]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="model, tree, lookup, lookup-tree, suffix, recycle, cascade, sen, sen-lexical, sen-tree, "
        "sen-tree-lexical, corpus or none; default: model with a draft."
    ),
]
Store = Annotated[str | None, typer.Option(help="Folder of a datastore, for the drafters that begin with sen.")]
Corpus = Annotated[str | None, typer.Option(help="File with one training text per line, for the drafter corpus.")]
GateFolder = Annotated[str | None, typer.Option("--gate", help="Folder of a trained gate.")]
RuleName = Annotated[str | None, typer.Option("--rule", help="Acceptance rule; default: autojudge with a gate.")]
Settings = Annotated[list[str], typer.Option("--set", help="Setting of the rule, such as theta=0.9; repeatable.")]
BlockLength = Annotated[int | None, typer.Option("--block", help="K, drafted tokens per target forward.", min=0)]
Budget = Annotated[
    float | None, typer.Option(help="Certified loss at which a gate runs, as a share; default: 0.03.", min=0, max=1)
]
Probes = Annotated[str | None, typer.Option("--segments", help="Folder of segment probes: judge whole segments.")]
Proof = Annotated[str | None, typer.Option("--certificate", help="certificate.json or its folder: decode as it says.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Length = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.", min=1)]
Stops = Annotated[list[str], typer.Option("--stop", help="Text that ends the answer; repeatable.")]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the chat template.")]
System = Annotated[str | None, typer.Option(help="System text of the chat template.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most probable token.", min=0)]
EngineName = Annotated[str, typer.Option("--engine", help="eager, or compiled: seconds to build, then faster.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling.")]
Guards = Annotated[list[str], typer.Option("--guard", help="loop, or domain (of the gate); repeatable.")]
Batches = Annotated[
    str | None, typer.Option("--speculate-up-to", help="Rows above which decoding is plain (0: always), or auto.")
]
InShadow = Annotated[bool, typer.Option("--shadow", help="Decode strictly; say what the rule would have accepted.")]


@app.command()
def generate(
    target: TargetName, prompt: Prompt, draft: Draft = None, drafter: Drafter = None, datastore: Store = None,
    corpus: Corpus = None, gate: GateFolder = None, rule: RuleName = None, settings: Settings = [],  # noqa: B006
    block: BlockLength = None, budget: Budget = None, certificate: Proof = None, segments: Probes = None,
    dtype: Dtype = "auto", max_new_tokens: Length = 256, stop: Stops = [], chat: Chat = False,  # noqa: B006
    system: System = None, temperature: Temperature = 0.0, seed: Seed = 0,
    guards: Guards = [], in_shadow: InShadow = False, engine: EngineName = "eager",  # noqa: B006
    speculate_up_to: Batches = None,
) -> None:  # fmt: skip
    """Continue one prompt; what was counted goes to standard error."""
    from gistgate.block import Sampling
    from gistgate.observing.race import AUTO, settle_batches
    from gistgate.observing.shadow import guarded, shadow, summary

    served = serve(locals(), temperature, chat, system)
    if in_shadow:
        shadow(served.decoder)
    ids = served.target.encode(read(prompt), chat, system)
    request = {"sampling": Sampling(temperature), **served.request(max_new_tokens, stop)}
    if speculate_up_to == AUTO:
        settle_batches(served.decoder, [ids], **request)
    answer = served.decoder.generate([ids], seeds=[seed], **request)[0]
    typer.echo(served.target.tokenizer.decode(answer.ids, skip_special_tokens=True))
    typer.echo(counted(answer), err=True)
    if guards:
        typer.echo(guarded(answer.statistics, guards), err=True)
    if in_shadow:
        typer.echo(summary(answer.statistics), err=True)


@app.command()
def trace(
    target: TargetName, prompt: Prompt, draft: Draft = None, drafter: Drafter = None, datastore: Store = None,
    corpus: Corpus = None, gate: GateFolder = None, rule: RuleName = None, settings: Settings = [],  # noqa: B006
    block: BlockLength = None, budget: Budget = None, certificate: Proof = None, segments: Probes = None,
    dtype: Dtype = "auto", max_new_tokens: Length = 256, stop: Stops = [], chat: Chat = False,  # noqa: B006
    system: System = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per token instead of colours.")] = False,
) -> None:  # fmt: skip
    """Continue one prompt and show why every token is there."""
    from gistgate.cli import show
    from gistgate.observing.trace import trace as traced

    served = serve(locals(), chat=chat, system=system)
    ids = served.target.encode(read(prompt), chat, system)
    answer, tokens = traced(served.decoder, ids, served.target.tokenizer, **served.request(max_new_tokens, stop))
    typer.echo(show.as_lines(tokens) if as_json else show.coloured(tokens))
    typer.echo(counted(answer), err=True)


@app.command()
def inspect(gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")]) -> None:
    """Say what a gate is: its partners, features and certified settings."""
    from gistgate.cli import show
    from gistgate.gates.gate import Gate

    loaded = Gate.load(gate)
    typer.echo(show.described(loaded.config, loaded.proof))


@app.command()
def calibrate(
    task: Annotated[str, typer.Option(help="Task that judges: a file in data/tasks or any lm-eval task.")],
    budget: Annotated[float, typer.Option(help="Loss that may be certified at most: 0.01 is one point.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Probability with which the certificate holds.")] = 0.95,
    gate: GateFolder = None, rule: RuleName = None,
    target: Annotated[str | None, typer.Option(help="Target model; default: the gate's.")] = None,
    draft: Draft = None, drafter: Drafter = None, settings: Settings = [], block: BlockLength = None,  # noqa: B006
    prompts: Annotated[int | None, typer.Option(help="Calibration prompts; default: twice the plan.", min=1)] = None,
    development: Annotated[int, typer.Option(help="Prompts that choose the settings to test.", min=1)] = 300,
    stop: Annotated[str, typer.Option(help="planned, lost (leave what loses), clear (either answer).")] = "lost",
    score: Annotated[str, typer.Option(help="task, logprob or judge.")] = "task",
    judge: Annotated[str | None, typer.Option(help="Judge model, for --score judge.")] = None,
    task_data: Annotated[str | None, typer.Option(help="Folder of .jsonl files that replaces the task's data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of certificate.json; default: the gate's.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together.", min=1)] = 32,
    seed: Seed = 0,
) -> None:  # fmt: skip
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    options = {name: value for name, value in locals().items() if name != "settings"}
    from gistgate.cli import show

    command = calibration()
    proof, path = command.certify(command.Options(**options, settings=tuple(settings)))
    typer.echo(f"{show.proved(proof)}\nwritten to {path}")


def calibration() -> Any:
    """The module behind `calibrate`.

    Raises:
        UserError: a library that it needs is not installed.
    """
    try:
        return importlib.import_module("gistgate.integrations.lm_eval.calibrate")
    except ModuleNotFoundError as error:
        raise UserError(
            f"This command needs '{error.name}', which is not installed. Install it with "
            "`pip install 'gistgate[calibrate]'`."
        ) from error


@app.command()
def bench(
    target: TargetName, prompts: Annotated[Path, typer.Argument(help="Text file, one prompt per line.")],
    draft: Draft = None, drafter: Drafter = None, datastore: Store = None,
    corpus: Corpus = None, gate: GateFolder = None, rule: RuleName = None, settings: Settings = [],  # noqa: B006
    block: BlockLength = None, budget: Budget = None, certificate: Proof = None, segments: Probes = None,
    dtype: Dtype = "auto", max_new_tokens: Length = 128, engine: EngineName = "eager",
) -> None:  # fmt: skip
    """Time plain, strict and the chosen decoding on the same prompts, interleaved prompt by prompt."""
    from gistgate.cli import show
    from gistgate.files import read_text
    from gistgate.observing.race import side_by_side

    served = serve(locals())
    ids = [served.target.encode(line) for line in read_text(prompts).splitlines() if line.strip()]
    typer.echo(show.timed(side_by_side(served.decoder, ids, **served.request(max_new_tokens, []))))


@app.command(
    "eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def evaluate(context: typer.Context) -> None:
    """Run lm-eval with the model `gistgate`; takes lm-eval's own arguments (try: gistgate eval run --help)."""
    from gistgate.integrations.lm_eval.__main__ import main as harness

    sys.argv = ["gistgate eval", *context.args]
    harness()


PARTS = (
    "draft", "drafter", "datastore", "corpus", "gate", "rule", "settings", "block", "budget", "certificate", "segments",
    "guards", "engine", "speculate_up_to",
)  # fmt: skip
"""Options of a command that `Served.load` hands on."""


def serve(options: dict[str, Any], temperature: float = 0.0, chat: bool = False, system: str | None = None) -> Any:
    """Target and decoder as a command's options name them.

    Raises:
        UserError: they do not fit together, or a certificate does not cover such requests.
    """
    from gistgate.build.served import Served
    from gistgate.certificates.holds import check_request, load_proof

    if options["certificate"] is not None:
        check_request(load_proof(options["certificate"]), temperature=temperature, chat=chat, system=system)
    parts = {name: options[name] for name in PARTS if name in options}
    return Served.load(options["target"], options["dtype"], **parts)


def read(prompt: str) -> str:
    """The prompt, from standard input if it is a dash."""
    return sys.stdin.read() if prompt == "-" else prompt


def counted(answer: Any) -> str:
    """One line about an answer."""
    done = answer.statistics
    return (
        f"{done.tokens} tokens in {done.forwards} target forwards (tau {done.mean_accepted_length:.2f}), "
        f"{done.loose} loose, ended by {answer.finish}"
    )


def main() -> None:
    """Entry point: what a person can mend becomes one sentence."""
    try:
        app()
    except UserError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
