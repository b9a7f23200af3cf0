"""GGUF files in the folders of target and draft: every command that loads a model takes their
names.
"""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gistgate.cli.main import app
from gistgate.core.utils import UserError
from gistgate.models import loading as models
from gistgate.models.loading import load_target
from tests.gguf_file import write_gguf

COMMANDS: dict[str, tuple[str, ...]] = {  # arguments besides the draft and the two files
    "generate": ("{folder}", "Tom"),
    "trace": ("{folder}", "Tom"),
    "bench": ("{folder}", "{prompts}"),
    "doctor": ("{folder}", "{prompts}"),
    "tune": ("{folder}", "{prompts}", "--gate", "none"),
    "fit-draft": ("{folder}", "{prompts}", "--out", "stop.json"),
    "draft-vocabulary": ("{folder}", "{prompts}", "--size", "60", "--out", "words.json"),
    "calibrate": (
        "--target",
        "{folder}",
        "--task",
        "sums",
        "--rule",
        "prob-ratio",
        "--out",
        "proof",
    ),
}
FILES = ("--gguf", "target.gguf", "--draft-gguf", "draft.gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder with the GGUF files of a target and a draft, and a file of prompts."""
    place = tmp_path_factory.mktemp("quantised")
    write_gguf(place / "target.gguf")
    write_gguf(place / "draft.gguf", seed=1)
    (place / "prompts.txt").write_text("Tom\n")
    return place


def call(folder: Path, command: str, *more: str) -> Result:
    """Run a command on the models of the folder."""
    filled = [
        one.format(folder=folder, prompts=folder / "prompts.txt") for one in COMMANDS[command]
    ]
    return CliRunner().invoke(app, [command, *filled, *more])


@pytest.mark.parametrize("command", COMMANDS)
def test_both_models_are_loaded_from_the_files_that_are_named(folder, monkeypatch, command):
    asked, load = [], models.load_model

    def loading(role: str, name: str, device: Any, *kind: Any, **options: Any) -> Any:
        asked.append((role, name, options.get("gguf_file")))
        if role == "draft":
            raise UserError("enough")
        return load(role, name, device, *kind, **options)

    monkeypatch.setattr(models, "load_model", loading)
    done = call(folder, command, "--draft", str(folder), *FILES)
    assert str(done.exception) == "enough", done.output
    assert asked == [("model", str(folder), "target.gguf"), ("draft", str(folder), "draft.gguf")]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"draft-vocabulary"}))
def test_a_file_of_a_draft_that_nobody_names_is_refused(folder, command):
    said = str(call(folder, command, *FILES).exception)
    assert "--draft-gguf" in said and "no draft is named" in said


def test_a_missing_file_is_named_with_those_that_are_there(folder):
    with pytest.raises(
        UserError, match=r"no file other.gguf \(GGUF files there: draft.gguf, target.gguf\)"
    ):
        load_target(str(folder), gguf="other.gguf")
