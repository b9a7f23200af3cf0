"""What `certify` and `calibrate` are told alike: what is asked, and what is promised of answers."""

import inspect
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args

import typer

from gistgate.cli.options import DECODER, AsJson, Seed, Template, parameter, plain_option
from gistgate.core.utils import UserError
from gistgate.models.options import parse_template
from gistgate.tasks.task import Prompting, TaskSpec

if TYPE_CHECKING:
    from gistgate.certificates.planning import Plan
    from gistgate.gate import Gate

TASK = "Task that asks and scores: any lm-eval task, a name in data/tasks, or a YAML file."
ENDS = (
    "When a test ends early: planned (never), lost (once the budget is lost), clear (once it is"
    " lost or kept)."
)
Certificate = TypeVar("Certificate")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is asked and promised, of an own decoder and of servers alike."""

    task: Annotated[str | None, plain_option(TASK)] = None
    budget: Annotated[
        float, plain_option("Largest loss to certify, as a share: 0.01 is one point.")
    ] = 0.02
    confidence: Annotated[float, plain_option("Probability with which the certificate holds.")] = (
        0.95
    )
    gate: Annotated[str | None, DECODER["gate"]] = None
    prompts: Annotated[
        int | None,
        plain_option("Calibration prompts; default: twice what the plan asks for.", min=1),
    ] = None
    stop: Annotated[str, plain_option(ENDS)] = "lost"
    task_data: Annotated[
        str | None, plain_option("Folder of .jsonl files that replaces the task's data.")
    ] = None
    allow_code: Annotated[
        bool, plain_option("Run programs that the model writes.", "--allow-code")
    ] = False
    chat: Annotated[
        bool | None,
        plain_option("Ask in the form of a chat; default: the gate's way, else plain text."),
    ] = None
    system: Annotated[
        str | None,
        plain_option('System text; default: the gate\'s; "" for none.', show_default=False),
    ] = None
    template: Template = ()  # type: ignore[assignment]
    num_fewshot: Annotated[
        int | None,
        plain_option("Solved examples; default: the gate's, else the task's own.", min=0),
    ] = None
    metric: Annotated[
        str | None,
        plain_option(
            "Metric and filter, such as exact_match,strict-match; default: the gate's or the first."
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        plain_option(
            "Longest answer where the task names none, in tokens; default: the gate's, else 256.",
            min=1,
        ),
    ] = None
    out: Annotated[Path | None, plain_option("Folder of the certificate; default: the gate's.")] = (
        None
    )
    draw: Annotated[
        int,
        plain_option(
            "Number of the set of calibration prompts; another takes other prompts.", min=1
        ),
    ] = 1
    looks: Annotated[
        int, plain_option("Planned looks at the same prompts; they divide the error.", min=1)
    ] = 1
    ledger: Annotated[
        Path, plain_option("File that lists the calibration prompts that were judged.")
    ] = Path(".gistgate/judged.json")
    seed: Seed = 0

    def plan(self, ternary: bool = True) -> "Plan":
        """The plan of one look at the prompts; refuses a claim that nobody can certify."""
        from gistgate.certificates.ledger import level
        from gistgate.certificates.planning import Plan, Stop

        if not (0 < self.budget < 1 and 0.5 <= self.confidence < 1):
            raise UserError(
                "A budget outside (0, 1) or a confidence outside [0.5, 1) cannot be certified."
                " Correct that."
            )
        confidence = level(self.confidence, self.looks)
        if self.stop not in get_args(Stop):
            raise UserError(
                f"There is no way to stop called '{self.stop}'. Use one of:"
                f" {', '.join(get_args(Stop))}."
            )
        return Plan(self.budget, confidence, ternary, cast(Stop, self.stop))

    def spec(self, gate: "Gate | None") -> TaskSpec:
        """What is loaded as the task; a gate's metric and limit count on the task that it was
        trained on.
        """
        trained = {} if gate is None else gate.config.labels
        if trained.get("task") != self.task:
            trained = {}
        limit = self.max_new_tokens or trained.get("max_new_tokens") or TaskSpec.max_new_tokens
        return TaskSpec(
            str(self.task),
            self.metric or trained.get("metric"),
            self.task_data,
            self.prompting(gate),
            limit,
            self.allow_code,
        )

    def prompting(self, gate: "Gate | None") -> Prompting:
        """How prompts are made: as the user says, else as the gate was trained."""
        prompting = Prompting(None) if gate is None else Prompting(**gate.config.prompting)
        changes: dict[str, Any] = {}
        if self.chat is not None:
            changes["chat_template"] = self.chat
        if self.chat is False:
            changes["system"] = None
        if self.system is not None:
            changes["system"] = self.system or None
        if self.num_fewshot is not None:
            changes["num_fewshot"] = self.num_fewshot
        if self.template:
            changes["arguments"] = parse_template(self.template)
        prompting = replace(prompting, **changes)
        if (self.system or self.template) and not prompting.chat_template:
            raise UserError(
                "A system text and a template need a chat. Add --chat, or leave --system and"
                " --template out."
            )
        return prompting


def fields_of(kind: type[Promise]) -> list[inspect.Parameter]:
    """The options of a command, of which --json is the last."""
    fields = inspect.signature(kind).parameters.values()
    return [*fields, parameter("as_json", AsJson, False)]


def written(
    certify: Callable[[], tuple[Certificate, Path]],
    describe: Callable[[Certificate], str],
    as_json: bool,
) -> Certificate:
    """Certify, and show the certificate and its file, as JSON or as a text; returns the
    certificate.
    """
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan is no JSON
        certificate, path = certify()
    if as_json:
        entries = asdict(cast(Any, certificate))
        typer.echo(json.dumps({"path": str(path), "certificate": entries}, default=str))
    else:
        typer.echo(f"{describe(certificate)}\nwritten to {path}")
    return certificate
