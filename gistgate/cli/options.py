"""The options that several commands share, each declared once."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from gistgate.core.utils import UserError
from gistgate.models.options import (
    DecodeOptions,
    EncodedPrompt,
    PromptFile,
    parse_settings,
    parse_template,
)

PANEL = "Decoder"  # heading of the decoder's options in a command's help


def option(help: str, *names: str, panel: str | None = PANEL, **limits: Any) -> Any:
    """An option of the decoder, or of another panel; None is the usual one."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **limits)


plain_option = partial(option, panel=None)
"""An option of one command or of several, but not of the decoder."""

TargetName = Annotated[str, typer.Argument(help="Target model: hub id, folder or GGUF file.")]
Prompt = Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.")]
TEXTS = (
    "File of prompts: a text per line, JSON lines or a JSON array; - reads it from standard input."
)
Prompts = Annotated[str, typer.Argument(help=TEXTS)]
Dtype = Annotated[str, plain_option("auto, float32, bfloat16 or float16.")]
Gguf = Annotated[
    str | None, plain_option("GGUF file in the target's folder or repository.", "--gguf")
]
Quantise = Annotated[
    str | None,
    plain_option(
        "Weights of the target on a processor: none, int8, int4, w8a8 (int8 with activations of 8"
        " bits) or gguf (as a GGUF file has them); default: gguf for such a file, else none."
    ),
]
Chat = Annotated[bool, plain_option("Wrap the prompt in the chat template.", "--chat")]
System = Annotated[str | None, plain_option("System text of the chat template.")]
TEMPLATE = (
    "Argument of the chat template, such as enable_thinking=false, or the name of one; repeatable."
)
Template = Annotated[list[str], plain_option(TEMPLATE, "--template")]
STOP = r"Text that ends answers (\n: line end); repeatable; default: the certified ones."
AsJson = Annotated[bool, plain_option("JSON for machines instead of text.", "--json")]
Seed = Annotated[int, plain_option("Seed of random numbers.")]
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}
"""What a shell hands over as two characters."""


@dataclass(frozen=True)
class Asking:
    """How a target is loaded, and how prompts are put to it."""

    dtype: Dtype = "auto"
    gguf: Gguf = None
    quantise: Quantise = None
    max_new_tokens: Annotated[int, plain_option("Longest answer, in tokens.", min=1)] = 256
    stop: Annotated[list[str], plain_option(STOP)] = ()  # type: ignore[assignment]
    chat: Chat = False
    system: System = None
    template: Template = ()  # type: ignore[assignment]

    def of(self, prompts: Sequence[EncodedPrompt], temperature: float = 0.0) -> PromptFile:
        """These prompts, put as the user says."""
        arguments = parse_template(self.template)
        stops = self.stops if self.stop else None
        return PromptFile(prompts, self.chat, self.system, temperature, arguments, stops)

    @property
    def stops(self) -> list[str]:
        """Texts that end the answer."""
        return [
            re.sub(r"\\[nt\\]", lambda escape: ESCAPES[escape[0]], text)
            for text in self.stop
            if text
        ]


def name_of(field: str) -> str:
    """The name on the command line of a field of `DecodeOptions`."""
    return {"settings": "--set", "guards": "--guard"}.get(field, f"--{field.replace('_', '-')}")


SHARE = {"min": 0, "max": 1}
LIMITS: dict[str, Any] = {
    "block": {"min": 0},
    "budget": SHARE,
    "confidence": SHARE,
    "speculate_up_to": {"min": 0},
}
KINDS: dict[str, Any] = {
    "block": int | None,
    "budget": float | None,
    "confidence": float | None,
    "guards": list[str],
    "settings": list[str],
    "speculate_up_to": int | None,
}
"""Types of those fields of `DecodeOptions` that are no texts."""
DECODER: dict[str, Any] = {
    name: option(hint.__metadata__[0], name_of(name), **LIMITS.get(name, {}))
    for name, hint in get_type_hints(DecodeOptions, include_extras=True).items()
}
"""The fields of `DecodeOptions` as options."""


def decoder_parameters(names: Iterable[str]) -> list[inspect.Parameter]:
    """Some fields of `DecodeOptions` as parameters of a command."""
    defaults = {**vars(DecodeOptions()), "settings": ()}
    return [
        parameter(name, Annotated[KINDS.get(name, str | None), DECODER[name]], defaults[name])
        for name in names
    ]


def decode_options(given: dict[str, Any], names: Iterable[str]) -> DecodeOptions:
    """Take these fields out of the arguments of a command."""
    options = {name: given.pop(name) for name in names}
    options["settings"] = parse_settings(options["settings"])
    return DecodeOptions(**options)


def decodes(**usual: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters `asking` and `options` become options; `usual` has other defaults,
    None for none.
    """
    fields = inspect.signature(Asking, eval_str=True).parameters.values()
    asking = [
        item.replace(default=usual.get(item.name, item.default))
        for item in fields
        if usual.get(item.name, item) is not None
    ]
    parts = {"asking": asking, "options": decoder_parameters(DECODER)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            about = Asking(**{item.name: given.pop(item.name) for item in asking})
            command(asking=about, options=decode_options(given, DECODER), **given)

        signature = inspect.signature(command, eval_str=True).parameters.items()
        return typed(run, [part for name, item in signature for part in parts.get(name, [item])])

    return decorate


def parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    """A parameter of a command, given by name."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def typed(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """The command with these parameters, all of them given by name, as Typer reads them."""
    named = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {}  # those of the signature are evaluated
    return command


METAVARS = (("bool", None), ("int", "N"), ("float", "X"), ("Path", "PATH"), ("", "TEXT"))
"""What stands for the value of an option in help, by a part of the name of its type."""


def grouped(
    parameters: Iterable[inspect.Parameter], groups: Mapping[str, Sequence[str]]
) -> Iterator[inspect.Parameter]:
    """Parameters in the order of their groups, which have a panel each in help; those of no group
    come last.
    """
    ungrouped = {item.name: item for item in parameters}
    for panel, names in groups.items():
        for name in names:
            item = ungrouped.pop(name)
            kind, declared = get_args(item.annotation)
            signs = (sign for part, sign in METAVARS if part in str(kind))
            shown = copy(declared)
            shown.rich_help_panel = panel
            shown.metavar = declared.metavar or next(signs)
            yield item.replace(annotation=Annotated[kind, shown])
    yield from ungrouped.values()


def refuse_options(options: DecodeOptions, names: Sequence[str], why: str) -> None:
    """Refuse (UserError) wishes that a command would not follow."""
    for name in names:
        if getattr(options, name) not in (getattr(DecodeOptions(), name), []):
            raise UserError(f"{name_of(name)} {why}. Leave that option out.")


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """While open, an import that fails says which `extra` has the library."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"This needs '{error.name}'. Run `pip install '.[{extra}]'` in GistGate's clone."
        ) from error
