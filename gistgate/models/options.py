"""What a user may say about decoding and its prompts, in objects that travel from a command line to
the builder.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gistgate.core.files import parsed, read_text
from gistgate.core.utils import UserError
from gistgate.coverage.ask import UNKNOWN, Ask, Settings, Wish, stops_of

if TYPE_CHECKING:
    from gistgate.models.loading import Target


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
        str | None, "Weights of the draft: int8, int4, w8a8 or none (on processors)."
    ] = None
    stop_drafting: Annotated[str | None, "File of fit-draft, which says when drafts end."] = None
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
    settings: Annotated[Settings, "Setting of the rule, such as theta=0.9; repeatable."] = field(
        default_factory=dict
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
    speculate_up_to: Annotated[int | None, "Rows above which decoding is plain (0: always)."] = None

    @property
    def lighter(self) -> dict[str, Any]:
        """Which draft model is loaded, and how it is made lighter: arguments of `load_draft`."""
        place = {"revision": self.draft_revision, "gguf": self.draft_gguf}
        return {**place, "quantised": self.quantise_draft, "vocabulary": self.draft_vocabulary}

    @property
    def wish(self) -> Wish:
        """What the user says about rule, setting, K and drafter."""
        return Wish(
            self.rule, self.settings, self.block, self.drafter, self.budget, self.confidence
        )


NAMES = tuple(item.name for item in fields(DecodeOptions) if item.name != "settings")
"""All options but the settings of the rule, which stand among keyword arguments under their own
names.
"""


def parse_settings(pairs: Sequence[str]) -> Settings:
    """Settings of a rule from texts such as `theta=0.9`; numbers and true/false become values."""
    settings: Settings = {}
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
    messages: tuple[dict[str, str], ...] = ()  # of a chat, which its template wraps


TEXTS = ("prompt", "question", "context", "text")
"""Keys under which files have their prompts; the first counts."""
FORM = (
    "Write a prompt per line, or as JSON or CSV: texts, or objects with a text `prompt`,"
    " `question`, `context` or `text`, or with the `messages` of a chat."
)
JSON = (".json", ".jsonl", ".ndjson")  # no line is a prompt
TABLES = {".csv": ",", ".tsv": "\t"}  # with the usual sign between two columns
OTHERS = (".yaml", ".yml", ".xml", ".html")


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
    """What a file or standard input (-) holds, JSON, JSON lines, a table whose first line names its
    columns, or texts, one per line, each with its place.
    """
    return entries_of(standard_input() if place == "-" else read_text(place), place)


def entries_of(text: str, place: str) -> list[tuple[str, Any]]:
    """The entries of a text from such a place, which also says the format by its ending."""
    suffix = Path(place.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return cells_of(place, text, separator_of(text, TABLES[suffix]))
    if suffix in OTHERS:
        return []
    document = None
    with suppress(ValueError):
        document = json.loads(text)
    if isinstance(document, list | dict):
        entries = document if isinstance(document, list) else [document]
        return [(f"{place}, entry {at},", entry) for at, entry in enumerate(entries, start=1)]
    rows = []
    for at, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            rows.append((f"{place}, line {at},", line))
    first = rows[0][1].strip() if rows else ""
    if first in ("[", "{") or (first.startswith("[{") and not first.endswith("]")):
        return [(place, parsed(text, place))]  # which refuses it and names the line
    if suffix in JSON or first.startswith(('["', "[{", '{"')):
        return [(where, parsed(line, where)) for where, line in rows]
    return rows


def separator_of(text: str, usual: str) -> str:
    """The sign between two columns of a table: semicolons in many countries."""
    header, _, _ = text.partition("\n")
    if usual not in header:
        with suppress(csv.Error):  # a table of one column
            return csv.Sniffer().sniff(header, ";\t|,").delimiter
    return usual


def cells_of(place: str, text: str, sign: str) -> list[tuple[str, Any]]:
    """The rows of a table by their columns, without empty cells; lists and objects are JSON."""
    csv.field_size_limit(len(text) + 1)
    table = csv.DictReader(io.StringIO(text), delimiter=sign, strict=True)
    rows = []
    for row in whole_rows(place, table):
        if None in row:
            raise UserError(
                f"{place}, line {table.line_num}, has more cells than the first line has names. Put"
                f" a text with '{sign}' in it into quotation marks."
            )
        entry: dict[str, Any] = {}
        for name, cell in row.items():
            if name and isinstance(cell, str) and cell.strip():
                entry[name] = cell
                if cell.startswith(("[{", '["', '{"')):
                    with suppress(ValueError):
                        entry[name] = json.loads(cell)
        rows.append((f"{place}, line {table.line_num},", entry))
    return rows


def whole_rows(place: str, table: csv.DictReader[str]) -> Iterator[dict[str | Any, Any]]:
    """The rows of a table, refused where a quotation mark is left open."""
    try:
        yield from table
    except csv.Error as error:
        raise UserError(
            f"{place}, line {table.line_num + 1}, begins no row of a table ({error}). Close"
            " quotation marks, and double those within a text."
        ) from error


def read_prompts(place: str) -> list[EncodedPrompt]:
    """The prompts of a file or of standard input (-), by what it holds."""
    prompts = [prompt_of(*row) for row in read_rows(place)]
    prompts = [prompt for prompt in prompts if prompt.text]
    if not prompts:
        raise UserError(f"{place} holds no prompt. {FORM}")
    return prompts


def prompt_of(where: str, row: Any) -> EncodedPrompt:
    """The prompt in an entry of a list; of several `turns` the first counts."""
    entry = row if isinstance(row, dict) else {"text": row}
    if entry.get("messages") is not None:
        messages = messages_of(where, entry)
        return EncodedPrompt(messages[-1]["content"], None, tuple(messages))
    text = next((entry[name] for name in TEXTS if entry.get(name) is not None), None)
    turns = entry.get("turns")
    if text is None and isinstance(turns, list):
        text = next((turn for turn in turns if turn is not None), None)
    if isinstance(text, dict):  # a turn with its right answer
        return prompt_of(where, {**entry, **text, "turns": None})
    ids = entry.get("ids") or []
    if not isinstance(text, str) or not is_ids(ids):
        raise UserError(f"{where} holds no prompt. {FORM}")
    if entry.get("system") and not ids:
        messages = messages_of(where, {**entry, "messages": [{"role": "user", "content": text}]})
        return EncodedPrompt(text, None, tuple(messages))
    return EncodedPrompt(text, tuple(ids) or None)


def messages_of(where: str, entry: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages of an entry up to the answer that is asked for, behind its system text."""
    turns = entry["messages"] if isinstance(entry["messages"], list) else []
    messages = [as_text(turn) for turn in turns]
    roles = [turn["role"] for turn in messages if is_turn(turn)]
    if roles and roles[-1] == "assistant":  # the answer, in a file for fine-tuning
        messages = messages[:-1]
        roles = roles[:-1]
    if len(roles) < len(messages) or roles[-1:] != ["user"]:
        raise UserError(f"{where} holds no prompt: its messages do not end with a user's text.")
    if entry.get("system"):
        return [{"role": "system", "content": str(entry["system"])}, *messages]
    return messages


def as_text(turn: Any) -> Any:
    """A message whose content is a list of texts, as the OpenAI protocol allows, with one text of
    so many lines, as servers read it; others, such as those with images, as they are.
    """
    parts = turn.get("content") if isinstance(turn, dict) else None
    if not isinstance(parts, list):
        return turn
    texts = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
    is_text = len(texts) == len(parts) and all(isinstance(text, str) for text in texts)
    return {**turn, "content": "\n".join(texts)} if is_text else turn


def is_turn(turn: Any) -> bool:
    """Whether a value is a message with a role and a text."""
    return isinstance(turn, dict) and "role" in turn and isinstance(turn.get("content"), str)


def is_ids(value: Any) -> bool:
    """Whether a value is a list of whole numbers."""
    return isinstance(value, list) and all(type(token) is int for token in value)


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
        rows = []
        for prompt in self.prompts:
            if prompt.messages:
                messages = list(prompt.messages)
                rows.append(target.encode_chat(messages, self.system, self.arguments))
                continue
            is_bare = self.chat and not is_rendered(target, prompt.text, arguments=self.arguments)
            if prompt.ids is None or is_bare:
                rows.append(target.encode(prompt.text, self.chat, self.system, self.arguments))
            else:
                rows.append(list(prompt.ids))
        return rows

    def ask(self, certified: Ask | None, target: Target) -> Ask:
        """What these prompts ask, as far as it is known; the target may find the `certified`
        prompting in prompts that hold their ids.
        """
        stops = UNKNOWN if self.stops is None else stops_of(self.stops, target.tokenizer)
        ask = Ask(
            temperature=self.temperature,
            chat=self.chat,
            system=self.system,
            num_fewshot=0 if self.chat else UNKNOWN,  # a plain text may hold examples
            arguments=self.arguments if self.chat else {},
            stops=stops,
        )
        if any(prompt.messages for prompt in self.prompts):
            return replace(ask, chat=True, num_fewshot=UNKNOWN, arguments=self.arguments)
        is_encoded = all(prompt.ids is not None for prompt in self.prompts)
        if certified is None or not (self.prompts and is_encoded):
            return ask
        how: dict[str, Any] = {"system": certified.system, "arguments": certified.arguments}
        if not all(is_rendered(target, prompt.text, **how, begins=True) for prompt in self.prompts):
            return replace(ask, num_fewshot=UNKNOWN)
        return replace(ask, chat=True, num_fewshot=UNKNOWN, **how)


def is_rendered(target: Target, text: str, begins: bool = False, **how: Any) -> bool:
    """Whether a text holds what the chat template puts behind a user's turn, and perhaps `begins`
    as it does.
    """
    mark = "GISTGATE"  # stands for the user's text: what the template puts around it counts
    with suppress(UserError):  # of a template that cannot write it
        before, _, behind = target.rendered(mark, **how).partition(mark)
        return bool(behind) and behind in text and (not begins or text.startswith(before))
    return False
