"""The command that begins a project of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gistgate.cli.extras import module_of
from gistgate.cli.options import Chat
from gistgate.errors import UserError


def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the project.")],
    target: Annotated[str | None, typer.Option(help="Target model: hub id, folder or GGUF file.")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model: hub id, folder or GGUF file.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="In place of a draft model: suffix or lookup, which copy from the text.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="gsm8k, a YAML file, or any lm-eval task; default: a file to fill in.")
    ] = None,
    target_revision: Annotated[str | None, typer.Option(help="Revision of the target on the hub.")] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Revision of the draft on the hub.")] = None,
    target_gguf: Annotated[str | None, typer.Option(help="GGUF file in the target's folder or repository.")] = None,
    draft_gguf: Annotated[str | None, typer.Option(help="GGUF file in the draft's folder or repository.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")] = "bfloat16",
    device_map: Annotated[str | None, typer.Option(help="Passed to from_pretrained, such as auto.")] = None,
    chat: Chat = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Let the pipeline train its own small pair instead of naming models.")
    ] = False,
) -> None:
    """Write a small project for a pair and a task, in which `dvc repro` makes a certified gate."""
    from gistgate.build.models import DTYPES
    from gistgate.project.create import EMBEDDED_TASK, OWN_TASK, Wanted, create, shipped_tasks

    check_models(target, draft, drafter, embedded)
    of_draft = {"--draft-revision": draft_revision, "--draft-gguf": draft_gguf}
    of_target = {"--target-revision": target_revision, "--target-gguf": target_gguf, "--device-map": device_map}
    check_idle({**({} if draft else of_draft), **(of_target if embedded else {})})
    if dtype not in DTYPES[1:]:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES[1:])}.")
    task = task or (EMBEDDED_TASK if embedded else OWN_TASK)
    if not task.endswith((".yaml", ".yml")) and task not in (OWN_TASK, *shipped_tasks()):
        module_of("gistgate.integrations.lm_eval.task_files", "pipeline").check_name(task)
    wanted = Wanted(
        folder=folder,
        target=target or "",
        draft=draft or "",
        drafter=drafter,
        task=task,
        target_revision=target_revision,
        draft_revision=draft_revision,
        target_gguf=target_gguf,
        draft_gguf=draft_gguf,
        dtype=dtype,
        device_map=device_map,
        chat=chat,
    )
    for name in create(wanted):
        typer.echo(folder / name)
    fill = " Fill in data/tasks first." if task == OWN_TASK else ""
    typer.echo(f"The project is written.{fill} Run `dvc repro` in {folder}; its README.md says more.")


def check_models(target: str | None, draft: str | None, drafter: str | None, embedded: bool) -> None:
    """A project has a target and something that drafts, or it trains its own pair.

    Raises:
        UserError: one of them is missing, or there is one too many.
    """
    from gistgate.build.checks import RETRIEVAL

    if embedded and (target or draft or drafter):
        raise UserError(
            "--embedded trains a pair of its own. Leave --target, --draft and --drafter away, or leave it away."
        )
    if drafter not in (None, *RETRIEVAL):
        raise UserError(f"There is no drafter '{drafter}' for a project. Use one of: {', '.join(RETRIEVAL)}.")
    if not embedded and not (target and bool(draft) != bool(drafter)):
        raise UserError(
            "A project needs --target and either --draft, or --drafter suffix or lookup for a target without a draft "
            "model. --embedded takes the small pair that is trained on the spot."
        )


def check_idle(idle: dict[str, str | None]) -> None:
    """Refuse options about a model that the project does not have.

    Raises:
        UserError: names the first.
    """
    named = next((option for option, value in idle.items() if value is not None), None)
    if named is not None:
        raise UserError(f"{named} is about a model that this project does not name. Name the model, or leave it out.")
