"""Where published figures come from: the code that made them, and the commit that holds it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from pipeline.common.closure import PACKAGES, ROOT
from pipeline.common.code import KEY, code_fingerprint, made_by

SOURCES = (*PACKAGES, "benchmarks", "params.yaml", ":!benchmarks/results", ":!**/dvc.lock")
"""What a commit has to hold for its figures; what commands write there is none of it."""


def check_finished(*targets: str, root: Path = Path()) -> None:
    """Refuse results that are older than the code, the parameters or the data of their stages, as DVC knows them.

    Stages of other files on which these depend count as well.

    Args:
        targets: stages, or the dvc.yaml of all of them.
        root: the project, or a copy of it in which they ran.

    Raises:
        UserError: stages have to run again, or DVC cannot say so.
    """
    named, command = " ".join(targets), ["dvc", "status", "--json", "--with-deps", *targets]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`dvc status {named}` failed: {done.stderr.strip() or done.stdout.strip()}")
    waiting = json.loads(done.stdout or "{}")
    if waiting:
        raise UserError(
            f"The results are older than their code, parameters or data: {', '.join(sorted(waiting))}. "
            f"Run `dvc repro {named}` before publishing."
        )


def origin(modules: Sequence[str], root: Path = ROOT) -> dict[str, Any]:
    """What a published file says under the key KEY: modules, fingerprint and commit.

    Args:
        modules: what made the results.
        root: the copy of the project whose code made them; its commit is the working tree's, with a `+` where the code
            of the two differs.

    Raises:
        UserError: this is no Git repository with a commit, or `root` lacks one of the modules.
    """
    made, present = made_by(*modules, root=root.resolve()), commit()
    is_other = made["fingerprint"] != code_fingerprint(*sorted(modules))
    return {KEY: {**made, "commit": f"{present.removesuffix('+')}+" if is_other else present}}


def commit() -> str:
    """The commit of the working tree; `+` at its end says that its sources were changed and not committed."""
    head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", *SOURCES)
    return f"{head[:12]}{'+' if changed else ''}"


def git(*arguments: str) -> str:
    """What Git answers.

    Raises:
        UserError: this is no Git repository with a commit.
    """
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`git {' '.join(arguments)}` failed: {done.stderr.strip()}. Publish from a clone.")
    return done.stdout.strip()


def line(content: dict[str, Any]) -> str:
    """One sentence about the code behind published figures."""
    code = content.get(KEY)
    if code is None:
        return "These figures were measured before results began to name the code that made them."
    name, changed = code["commit"].removesuffix("+"), code["commit"].endswith("+")
    if code.get("changed"):
        return f"Made while {code['changed'][0]} changed, with code of commit `{name}` that is not known for sure."
    rest = ", with changes that were not committed" if changed else ""
    return f"Made by the code of commit `{name}`{rest} (fingerprint `{code['fingerprint']}`)."
