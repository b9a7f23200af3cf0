"""What a user may say about decoding and its prompts, in objects that travel from a command line to
the builder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gistgate.core.files import parsed, read_text
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.coverage.certificate import Certificate
    from gistgate.models.loading import Target

AUTO = "auto"  # in place of a number of rows: measure up to which batch size speculation pays
MEASURED_BY = (
    "speculate_up_to=auto (--speculate-up-to) is measured by `gistgate generate` and the lm-eval"
    " model alone. Give a number of rows, or leave it away."
)


@dataclass(frozen=True)
class DecodeOptions:
    """The parts and options of a decoder; None and empty where the user says nothing.

    The text of each field is the help of its option on the command line. Draft, gate and segments
    may be loaded ones.
    """

    draft: Annotated[Any, "Draft model: hub id, folder or GGUF file."] = None
    draft_revision: Annotated[str, "Revision of the draft model on the hub."] = "main"
    draft_gguf: Annotated[str | None, "GGUF file in the draft's folder or repository."] = None
    quantise_draft: Annotated[
        str | None, "Weights of the draft: int8, int4 or none (on processors)."
    ] = None
    stop_drafting: Annotated[
        str | None, "File of fit-draft, which says when drafts end."
    ] = None
    draft_vocabulary: Annotated[
        str | None, "File of draft-vocabulary: tokens that the draft may propose."
    ] = None
    drafter: Annotated[
        str | None,
        "model, tree, lookup, suffix, recycle, hybrid, sen, sen-lexical, sen-tree,"
        " sen-tree-lexical, corpus or none; default: the certified one, else model with a draft.",
    ] = None
    datastore: Annotated[
        str | None, "Folder of a datastore, for the drafters that begin with sen."
    ] = None
    corpus: Annotated[
        str | None, "File with one training text per line, for the drafter corpus."
    ] = None
    gate: Annotated[Any, "Folder of a trained gate."] = None
    rule: Annotated[str | None, "Acceptance rule; default: the certified one, else exact."] = None
    settings: Annotated[dict[str, Any], "Setting of the rule, such as theta=0.9; repeatable."] = (
        field(default_factory=dict)
    )
    block: Annotated[int | None, "K, drafted tokens per target forward."] = None
    budget: Annotated[float | None, "Certified loss, as a share; default: the headline's."] = None
    confidence: Annotated[float | None, "Least confidence of the certificate."] = None
    certificate: Annotated[str | None, "certificate.json or its folder: decode as it says."] = None
    segments: Annotated[Any, "Folder of segment probes: judge whole segments."] = None
    guards: Annotated[
        Sequence[str], "loop, domain (of the gate), or a scope: prose or thinking; repeatable."
    ] = ()
    engine: Annotated[
        str,
        "eager, or compiled: takes seconds to minutes to build, then faster for single requests.",
    ] = "eager"
    speculate_up_to: Annotated[
        int | str | None, "Rows above which decoding is plain (0: always), or auto."
    ] = None

    def __post_init__(self) -> None:
        if self.draft_gguf is not None and self.draft is None:
            raise UserError(
                f"--draft-gguf {self.draft_gguf} is of a draft, and no draft is named. Name it"
                " (--draft)."
            )

    @property
    def lighter(self) -> dict[str, Any]:
        """Which draft model is loaded, and how it is made lighter: arguments of `load_draft`."""
        place = {"revision": self.draft_revision, "gguf": self.draft_gguf}
        return {**place, "quantised": self.quantise_draft, "vocabulary": self.draft_vocabulary}

    @property
    def most_rows(self) -> int | None:
        """`speculate_up_to` as a number; None where nothing or "auto" is said."""
        asked = self.speculate_up_to
        if asked is None or asked == AUTO:
            return None
        if not str(asked).isdecimal():
            raise UserError(
                f"speculate_up_to is '{asked}'. Give a number of rows (0 never speculates) or"
                f" '{AUTO}'."
            )
        return int(asked)


NAMES = tuple(item.name for item in fields(DecodeOptions) if item.name != "settings")
"""All options but the settings of the rule, which stand among keyword arguments under their own
names.
"""


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a rule from texts such as `theta=0.9`; numbers and true/false become values."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = (part.strip() for part in pair.partition("="))
        if not (sign and name):
            raise UserError(
                f"'{pair}' is no setting. Write it as name=value, for instance theta=0.9."
            )
        settings[name] = {"true": True, "false": False}.get(text.lower(), text)
        for kind in (float, int):  # a whole number is both, and kept as such
            with suppress(ValueError):
                settings[name] = kind(text)
    return settings


def parse_template(pairs: Sequence[str]) -> dict[str, Any]:
    """Arguments of a chat template from texts such as `enable_thinking=false`; one without a sign
    names a template.
    """
    return parse_settings([pair if "=" in pair else f"chat_template={pair}" for pair in pairs])


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt, with its token ids where the file of prompts holds them."""

    text: str
    ids: tuple[int, ...] | None = None
    kind: str = "file"  # what the file calls its `category`


FORM = (
    "Write a prompt per line, or as JSON: texts, or objects with a text `context`, `prompt`,"
    " `question` or `text`."
)
JSON = (".json", ".jsonl", ".ndjson")  # no line is a prompt
TABLES = (".csv", ".tsv", ".yaml", ".yml", ".xml", ".html")


def standard_input() -> str:
    """The text of standard input, without the mark that some programs put first."""
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input cannot be read as text ({error}). Pass UTF-8.") from error


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input if it is a dash, without the line end that a shell's commands
    write last.
    """
    return prompt if prompt != "-" else standard_input().removesuffix("\n")


def read_rows(place: str) -> list[tuple[str, Any]]:
    """What a file or standard input (-) holds, JSON, JSON lines, or texts, one per line, each with
    its place.
    """
    text = standard_input() if place == "-" else read_text(place)
    rows = [
        (f"{place}, line {at},", line)
        for at, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    whole = None
    suffix = Path(place).suffix.lower()
    first = rows[0][1].strip() if rows else ""
    with suppress(ValueError):
        whole = json.loads(text)
    if isinstance(whole, list | dict):
        entries = enumerate(whole if isinstance(whole, list) else [whole], start=1)
        rows = [(f"{place}, entry {at},", entry) for at, entry in entries]
    elif suffix in JSON or first in ("[", "{") or first.startswith(('["', "[{", '{"')):
        rows = [(where, parsed(line, where)) for where, line in rows]
    return [row for row in rows if suffix not in TABLES]


def read_prompts(place: str) -> list[EncodedPrompt]:
    """The prompts of a file or of standard input (-), by what it holds."""
    found = [prompt_of(*row) for row in read_rows(place)]
    if not (kept := [one for one in found if one.text]):
        raise UserError(f"{place} holds no prompt. {FORM}")
    return kept


def prompt_of(where: str, row: Any) -> EncodedPrompt:
    """The prompt in an entry of a list; of several `turns` the first counts."""
    entry = row if isinstance(row, dict) else {"text": row}
    turns = entry["turns"] if isinstance(entry.get("turns"), list) else ()
    texts = [*(entry.get(name) for name in ("context", "prompt", "question", "text")), *turns]
    text = next((one for one in texts if one is not None), None)
    ids = entry.get("ids") or []
    if (
        not isinstance(text, str)
        or not isinstance(ids, list)
        or any(type(token) is not int for token in ids)
    ):
        raise UserError(f"{where} holds no prompt. {FORM}")
    return EncodedPrompt(text, tuple(ids) or None, str(entry.get("category") or "file"))


@dataclass(frozen=True)
class PromptFile:
    """The prompts of a command, and what the user says about the way they are put to a target."""

    prompts: Sequence[EncodedPrompt] = ()
    chat: bool = False
    system: str | None = None
    temperature: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the chat template
    stops: Sequence[str] | None = None  # texts that end answers; None: the certified ones

    def encode(self, target: Target) -> list[list[int]]:
        """The ids of all prompts: those of the file, else encoded and wrapped as the user says."""
        return [
            (
                target.encode(one.text, self.chat, self.system, self.arguments)
                if one.ids is None
                or (self.chat and not is_rendered(target, one.text, arguments=self.arguments))
                else list(one.ids)
            )
            for one in self.prompts
        ]

    def check(self, certificate: Certificate, target: Target | None = None) -> None:
        """Refuse requests unlike the certified ones; those that hold their ids once their target is
        at hand.
        """
        from gistgate.coverage.certificate import check_request, stops_of

        chat = self.chat  # a plain text may hold examples
        system = self.system
        number = 0 if self.chat else None
        how: dict[str, Any] = {"temperature": self.temperature, "arguments": self.arguments}
        if self.stops is not None:
            how["stops"] = stops_of(self.stops, target and target.tokenizer)
        if self.prompts and all(prompt.ids is not None for prompt in self.prompts):
            if target is None:
                return
            known = certificate.scope.get("prompting") or {}
            made = {"system": known.get("system"), "arguments": known.get("arguments")}
            is_chat = all(
                is_rendered(target, prompt.text, **made, begins=True) for prompt in self.prompts
            )
            chat = chat or is_chat
            system = made["system"] if is_chat else system
            number = None
            how |= {"arguments": made["arguments"]} if is_chat else {}
        check_request(certificate, chat=chat, system=system, num_fewshot=number, **how)


def is_rendered(target: Target, text: str, begins: bool = False, **how: Any) -> bool:
    """Whether a text holds what the chat template puts behind a user's turn, and perhaps `begins`
    as it does.
    """
    mark = "GISTGATE"  # stands for the user's text: what the template puts around it counts
    with suppress(UserError):  # of a template that cannot write it
        before, _, behind = target.rendered(mark, **how).partition(mark)
        return bool(behind) and behind in text and (not begins or text.startswith(before))
    return False
