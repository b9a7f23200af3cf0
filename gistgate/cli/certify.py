"""`gistgate certify`: one server against another, on a task or on one's own prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gistgate.cli import show
from gistgate.cli.calibrate import ENDS, Promise, asked, fields_of, proved
from gistgate.cli.options import module_of, typed
from gistgate.core.utils import UserError


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate certify`."""

    strict: Annotated[str, asked("The reference server, such as http://HOST:8000/v1.")]
    loose: Annotated[str, asked("The server that is certified against it.")]
    file: Annotated[
        str | None,
        asked(
            "In place of a task, .jsonl with `prompt` or `messages`, and `answer` if one is known."
        ),
    ] = None
    claim: Annotated[
        str | None,
        asked(
            "score (usual if right answers are known), agreement (with the strict answer) or"
            " length."
        ),
    ] = None
    changed: Annotated[
        float, asked("Share of answers that the plan expects to differ.", min=0, max=1)
    ] = 0.05
    stop: Annotated[str, asked(ENDS)] = "clear"
    out: Annotated[Path | None, asked("Folder of the card; default: this one.")] = None
    strict_model: Annotated[
        str | None, asked("Model of the reference server; default: its only one.")
    ] = None
    loose_model: Annotated[
        str | None, asked("Model of the other server; default: its only one.")
    ] = None
    same_model: Annotated[
        list[str], asked("Another name that the answers may give the model asked for; repeatable.")
    ] = ()  # type: ignore[assignment]
    strict_body: Annotated[
        str, asked("Further entries of every request to the reference server, as JSON.")
    ] = "{}"
    loose_body: Annotated[
        str, asked("Further entries of every request to the other server, as JSON.")
    ] = "{}"
    concurrent: Annotated[
        int, asked("Requests that are under way at the same time at a server.", min=1)
    ] = 8
    temperature: Annotated[
        float, asked("Of all requests; above 0 the claim is on average over samples.", min=0)
    ] = 0.0
    samples: Annotated[
        int, asked("Answers to each prompt, by seeds that follow --seed.", min=1)
    ] = 1
    resume: Annotated[
        bool, asked("Go on after an interruption, both servers unchanged.", "--resume")
    ] = False
    watch: Annotated[
        bool, asked("Test exchangeable prompts as they come, until a loss.", "--watch")
    ] = False
    share: Annotated[
        float, asked("Share of the prompts that --watch asks, drawn by chance.", min=0, max=1)
    ] = 1.0


def certify(**given: Any) -> None:
    """Certify one server against another, whatever runs behind it; exit with status 1 if the claim
    is not shown.

    The claim is on a task, or on a file of your own prompts. A card is written as JSON and as
    Markdown.
    """
    if given["watch"]:
        del given["as_json"]
        module_of("gistgate.certify.watch", "endpoints").watch(Options(**given))
    elif not (
        made := proved(given, Options, "gistgate.certify.comparison", "endpoints", show.compared)
    ).certified:
        raise UserError(made.refusal)


typed(certify, fields_of(Options))
