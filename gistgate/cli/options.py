"""The options that several commands share, each declared once."""

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.core.utils import UserError
from gistgate.models.options import DecodeOptions, EncodedPrompt, parse_settings

TargetName = Annotated[str, typer.Argument(help="Target model: hub id, folder or GGUF file.", metavar="TARGET")]
Gguf = Annotated[str | None, typer.Option("--gguf", help="GGUF file in the target's folder or repository.")]
Prompt = Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.", metavar="PROMPT")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Length = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.", min=1)]
Stops = Annotated[list[str], typer.Option("--stop", help="Text that ends the answer; repeatable.")]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the chat template.")]
System = Annotated[str | None, typer.Option(help="System text of the chat template.")]
Prompts = Annotated[
    str,
    typer.Argument(
        help="Text file, one prompt per line, or .jsonl with `context` (and `ids`); - reads it from standard input."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
Seed = Annotated[int, typer.Option(help="Seed of random numbers.")]

PANEL = "Decoder"  # heading of the options in a command's help


def option(help: str, *names: str, **limits: Any) -> Any:
    """An option of the decoder."""
    return typer.Option(*names, help=help, rich_help_panel=PANEL, **limits)


Draft = Annotated[str | None, option("Draft model: hub id, folder or GGUF file.")]
DraftGguf = Annotated[str | None, option("GGUF file in the draft's folder or repository.")]
QuantiseDraft = Annotated[str | None, option("Weights of the draft: int8, int4 or none (on processors).")]
StopDrafting = Annotated[str | None, option("File of fit-draft, or a confidence such as 0.4, below which drafts end.")]
DraftVocabulary = Annotated[str | None, option("File of draft-vocabulary: tokens that the draft may propose.")]
Drafter = Annotated[
    str | None,
    option(
        "model, tree, lookup, lookup-tree, suffix, recycle, cascade, hybrid, sen, sen-lexical, sen-tree, "
        "sen-tree-lexical, corpus or none; default: the certified one, else model with a draft."
    ),
]
GateFolder = Annotated[str | None, option("Folder of a trained gate.", "--gate")]
RuleName = Annotated[str | None, option("Acceptance rule; default: the certified one, else exact.", "--rule")]
Settings = Annotated[list[str], option("Setting of the rule, such as theta=0.9; repeatable.", "--set")]
BlockLength = Annotated[int | None, option("K, drafted tokens per target forward.", "--block", min=0)]

WISHES: dict[str, Any] = {  # the fields of `DecodeOptions` as options
    "draft": Draft,
    "draft_revision": Annotated[str, option("Revision of the draft model on the hub.")],
    "draft_gguf": DraftGguf,
    "quantise_draft": QuantiseDraft,
    "stop_drafting": StopDrafting,
    "draft_vocabulary": DraftVocabulary,
    "drafter": Drafter,
    "datastore": Annotated[str | None, option("Folder of a datastore, for the drafters that begin with sen.")],
    "corpus": Annotated[str | None, option("File with one training text per line, for the drafter corpus.")],
    "gate": GateFolder,
    "rule": RuleName,
    "settings": Settings,
    "block": BlockLength,
    "budget": Annotated[float | None, option("Certified loss, as a share; default: the headline's.", min=0, max=1)],
    "confidence": Annotated[float | None, option("Least confidence of the certificate.", min=0, max=1)],
    "certificate": Annotated[str | None, option("certificate.json or its folder: decode as it says.")],
    "segments": Annotated[str | None, option("Folder of segment probes: judge whole segments.")],
    "guards": Annotated[list[str], option("loop, or domain (of the gate); repeatable.", "--guard")],
    "engine": Annotated[
        str, option("eager, or compiled: takes seconds to minutes to build, then faster for single requests.")
    ],
    "speculate_up_to": Annotated[str | None, option("Rows above which decoding is plain (0: always), or auto.")],
}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the fields of `DecodeOptions` to the options of a command, which receives them as its argument `options`."""
    defaults = {**vars(DecodeOptions()), "settings": [], "guards": []}  # what can be repeated begins as an empty list
    own = [item for name, item in inspect.signature(command, eval_str=True).parameters.items() if name != "options"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=defaults[name])
        for name, kind in WISHES.items()
    ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        named = {name: given.pop(name) for name in WISHES}
        named["settings"] = parse_settings(named["settings"])
        command(**given, options=DecodeOptions(**named))

    keyword = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    with_options.__signature__ = inspect.Signature([*keyword, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {}  # Typer reads the signature, whose annotations are evaluated
    return with_options


def refuse_options(options: DecodeOptions, names: Sequence[str], why: str) -> None:
    """Refuse wishes that a command would not follow."""
    for name in names:
        if getattr(options, name) not in (getattr(DecodeOptions(), name), []):
            shown = {"settings": "set", "guards": "guard"}.get(name, name.replace("_", "-"))
            raise UserError(f"--{shown} {why}. Leave that option out.")


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input if it is a dash."""
    try:
        return prompt if prompt != "-" else sys.stdin.read()
    except UnicodeError as error:
        raise UserError(f"Standard input is no text in UTF-8 ({error}). Convert it first.") from error


def read_prompts(place: str) -> list[EncodedPrompt]:
    """The prompts of a text file, one per line, of standard input, or of a .jsonl file such as the pipeline writes."""
    from gistgate.core.files import read_json_lines, read_text

    if place.endswith(".jsonl"):
        found = []
        for row in read_json_lines(Path(place)):
            text, ids = (row.get("context"), row.get("ids")) if isinstance(row, dict) else (None, None)
            if not isinstance(text, str):
                raise UserError(f"{place} has lines without a text `context`. Write one prompt per line, or that key.")
            is_list = isinstance(ids, list) and ids and all(type(one) is int and one >= 0 for one in ids)
            if ids is not None and not is_list:
                raise UserError(
                    f"{place} has lines whose `ids` are no token ids. Write whole numbers, or leave that key out."
                )
            found.append(EncodedPrompt(text, None if ids is None else tuple(ids)))
    else:
        text = read_prompt(place) if place == "-" else read_text(place)
        lines = text.removeprefix("\ufeff").split("\n")  # a mark that some editors write in front
        found = [EncodedPrompt(line.removesuffix("\r")) for line in lines if line.strip()]
    if not (kept := [one for one in found if one.text]):
        raise UserError(f"{place} holds no prompt. Write one prompt per line.")
    return kept


def module_of(name: str, extra: str) -> Any:
    """The module called `name`, whose libraries come with `extra`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"This command needs '{error.name}', which is not installed. Install it with "
            f"`pip install '.[{extra}]'` in the clone of GistGate."
        ) from error
