"""What retrieval may know: the training prompts with the target's strict answers, and nothing of any other split."""

from __future__ import annotations

from dataclasses import dataclass

from gistgate.errors import UserError
from gistgate.files import read_json_lines
from pipeline.common.paths import prompts_of, reference_of

PROMPTS, ANSWERS = prompts_of("train"), reference_of("train")


@dataclass(frozen=True)
class Text:
    """A prompt and its strict answer, as token ids."""

    prompt: list[int]
    answer: list[int]


def training_texts() -> list[Text]:
    """Training prompts with their strict answers.

    Raises:
        UserError: a prompt without an answer.
    """
    answers = {row["id"]: row["ids"] for row in read_json_lines(ANSWERS)}
    prompts = read_json_lines(PROMPTS)
    missing = [row["id"] for row in prompts if row["id"] not in answers]
    if missing:
        raise UserError(f"{ANSWERS} has no answer to '{missing[0]}'. Run `python -m pipeline.stages.reference` again.")
    return [Text(row["ids"], answers[row["id"]]) for row in prompts]
