"""`gistgate certify`: one server against another, on a task or on one's own prompts, or one run of
an evaluation against another.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.cli.from_logs import are_logs, from_logs
from gistgate.cli.options import grouped, needing, parameter, plain_option, typed
from gistgate.cli.outcome import carded, conclude
from gistgate.cli.promise import ENDS, Promise, fields_of
from gistgate.cli.settings_file import read_settings
from gistgate.core.utils import UserError

SIDES = "'--baseline' / '--candidate'"
TURNS = ("last", "all")


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate certify`."""

    strict: Annotated[
        str,
        plain_option(
            "The reference: a server, such as http://HOST:8000/v1, or the log of a run.",
            "--baseline",
        ),
    ] = ""
    loose: Annotated[
        str,
        plain_option(
            "The server, or the log of the run, that is certified against it.",
            "--candidate",
        ),
    ] = ""
    joint: Annotated[
        str,
        plain_option("In logs of several tasks, what keeps the budget: each task, or their mean."),
    ] = "each"
    recompute: Annotated[
        Path | None, plain_option("Card that is computed again from its records.")
    ] = None
    junit: Annotated[
        Path | None, plain_option("File for the verdict in JUnit's form, which CI systems show.")
    ] = None
    file: Annotated[
        str | None,
        plain_option(
            "Your prompts: .jsonl or a table with `prompt` or `messages`, and `answer` if you know"
            " it."
        ),
    ] = None
    replay: Annotated[
        bool,
        plain_option("Send the assistant's turns of a conversation as they stand.", "--replay"),
    ] = False
    turns: Annotated[
        str,
        plain_option("Answers of a conversation that are scored: the last, or all."),
    ] = "last"
    scorer: Annotated[
        str | None,
        plain_option(
            "Compares answers of --file: exact, includes, match, number, choice, pattern, f1, json"
            " or module:function; default: the strictest that fits."
        ),
    ] = None
    claim: Annotated[
        str | None,
        plain_option(
            "score (usual if right answers are known), tools (calls of them), agreement (with the"
            " strict answer), judge (what --judge prefers), length or thoughts (their length)."
        ),
    ] = None
    changed: Annotated[
        float, plain_option("Share of answers that the plan expects to differ.", min=0, max=1)
    ] = 0.05
    stop: Annotated[str, plain_option(ENDS)] = "clear"
    out: Annotated[Path | None, plain_option("Folder of the card; default: this one.")] = None
    strict_model: Annotated[
        str | None,
        plain_option("Model of the baseline; default: its only one.", "--baseline-model"),
    ] = None
    loose_model: Annotated[
        str | None,
        plain_option("Model of the candidate; default: its only one.", "--candidate-model"),
    ] = None
    same_model: Annotated[
        list[str],
        plain_option("Another name that the answers may give the model asked for; repeatable."),
    ] = ()  # type: ignore[assignment]
    strict_body: Annotated[
        str,
        plain_option(
            "Further entries of every request to the baseline, as JSON; null leaves an entry out.",
            "--baseline-body",
        ),
    ] = "{}"
    loose_body: Annotated[
        str,
        plain_option(
            "The same for the candidate.",
            "--candidate-body",
        ),
    ] = "{}"
    judge: Annotated[
        str,
        plain_option("A third server, which compares both answers blind and in both orders."),
    ] = ""
    judge_model: Annotated[
        str | None, plain_option("Model of the judge; default: its only one.")
    ] = None
    judge_prompt: Annotated[
        Path | None,
        plain_option("File with what the judge is asked, with {question}, {a} and {b}."),
    ] = None
    judge_body: Annotated[str, plain_option("Further entries of every request to the judge.")] = (
        "{}"
    )
    judge_header: Annotated[
        list[str], plain_option("Header of every request to the judge, as for the others.")
    ] = ()  # type: ignore[assignment]
    strict_header: Annotated[
        list[str],
        plain_option(
            "Header of every request to the baseline, such as 'X-Api-Key: $NAME' with a variable of"
            " the environment; never written; repeatable.",
            "--baseline-header",
        ),
    ] = ()  # type: ignore[assignment]
    loose_header: Annotated[
        list[str], plain_option("The same for the candidate.", "--candidate-header")
    ] = ()  # type: ignore[assignment]
    concurrent: Annotated[
        int, plain_option("Requests that are under way at the same time at a server.", min=1)
    ] = 8
    control: Annotated[
        int,
        plain_option(
            "Prompts that the baseline answers a second time, to see how far it differs from"
            " itself; 0 for none.",
            min=0,
        ),
    ] = 20  # finds, at 95 %, a baseline that differs from itself on one prompt in seven
    time: Annotated[
        int,
        plain_option(
            "Further prompts that both servers answer one at a time, to compare their speed.", min=0
        ),
    ] = 0
    quick: Annotated[
        bool,
        plain_option("Ask 20 prompts, show differences and costs, and claim nothing.", "--quick"),
    ] = False
    temperature: Annotated[
        float, plain_option("Of all requests; above 0 the claim is on average over samples.", min=0)
    ] = 0.0
    samples: Annotated[
        int, plain_option("Answers to each prompt, by seeds that follow --seed.", min=1)
    ] = 1
    resume: Annotated[
        bool,
        plain_option(
            "Go on with a run that was stopped, with the answers that it got; both servers have to"
            " be unchanged.",
            "--resume",
        ),
    ] = False
    skip_refused: Annotated[
        int,
        plain_option("Prompts that a server may refuse; they are left out and counted.", min=0),
    ] = 0
    keep_texts: Annotated[
        bool,
        plain_option(
            "Keep prompts and answers beside the card, which then shows the worst ten.",
            "--keep-texts",
        ),
    ] = False
    watch: Annotated[
        bool, plain_option("Test exchangeable prompts as they come, until a loss.", "--watch")
    ] = False
    share: Annotated[
        float,
        plain_option("Share of the prompts that --watch asks, drawn by chance.", min=0, max=1),
    ] = 1.0

    @property
    def scores_turns(self) -> bool:
        """Whether all answers of a conversation are scored."""
        if self.turns not in TURNS:
            raise UserError(f"--turns {self.turns} says nothing. Use one of: {', '.join(TURNS)}.")
        return self.turns == "all"


SettingsFile = Annotated[
    Path | None,
    typer.Argument(
        help="File with options, such as certify.yaml; those of the command line override it.",
        callback=read_settings,
        is_eager=True,
        exists=True,
        dir_okay=False,
        metavar="FILE",
    ),
]
GROUPS = {
    "What is compared: --baseline, --candidate, and --file or --task": (
        *("strict", "loose", "file", "task"),
    ),
    "Often used": (
        *("budget", "chat", "max_new_tokens", "quick", "time", "keep_texts", "resume", "out"),
        *("junit", "as_json"),
    ),
    "The claim": ("claim", "scorer", "metric", "confidence", "joint"),
    "Prompts and the form of requests": (
        *("prompts", "system", "template", "num_fewshot", "temperature", "samples", "seed"),
        *("replay", "turns", "task_data", "allow_code", "gate"),
    ),
    "Servers": (
        *("strict_model", "loose_model", "same_model", "strict_body", "loose_body"),
        *("strict_header", "loose_header", "concurrent", "skip_refused", "control"),
    ),
    "Judge": ("judge", "judge_model", "judge_prompt", "judge_body", "judge_header"),
    "Plan and looks": ("changed", "stop", "draw", "looks", "ledger", "recompute"),
    "Prompts as they come": ("watch", "share"),
}
"""Fields of the options in help."""


def certify(as_json: bool, settings_file: Path | None, **given: Any) -> None:
    """Certify one server, or the log of one run, against another.

    The claim is on a task or on a file of your own prompts; logs are those of lm-eval or
    inspect_ai, or a table with id and score. A card is written as JSON, Markdown and HTML. The exit
    status is 0 for PASS, 1 for FAIL, 3 for UNDECIDED, and 2 where nothing could be compared.
    """
    options = Options(**given)
    conclude(partial(verdict_of, options, as_json))


def present_name(name: str) -> str:
    """The name of an option, without dashes, which earlier versions called otherwise."""
    for before, now in (("strict", "baseline"), ("loose", "candidate")):
        if re.fullmatch(rf"{before}(-.*)?", name):
            return now + name.removeprefix(before)
    return name


def verdict_of(options: Options, as_json: bool) -> str:
    """The verdict about two servers or two runs."""
    if are_logs(options):
        return from_logs(options, as_json)
    if not (options.strict and options.loose):
        raise UserError(f"Name two servers, or the logs of two runs ({SIDES}).")
    with needing("endpoints"):
        from gistgate.cli.quick import quick
        from gistgate.cli.servers import compare
        from gistgate.cli.watch import watch
    if options.quick:
        return quick(options)
    if options.watch:
        return watch(options)
    return carded(partial(compare, options), as_json, options.junit)


SETTINGS = parameter("settings_file", SettingsFile, None)
typed(certify, [SETTINGS, *grouped(fields_of(Options), GROUPS)])
