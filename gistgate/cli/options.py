"""The options that several commands share, each declared once."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, get_type_hints

import typer

from gistgate.core.utils import UserError
from gistgate.models.options import (
    DecodeOptions,
    EncodedPrompt,
    PromptFile,
    parse_settings,
    parse_template,
)

TargetName = Annotated[
    str, typer.Argument(help="Target model: hub id, folder or GGUF file.", metavar="TARGET")
]
Prompt = Annotated[
    str, typer.Argument(help="Text to continue; - reads it from standard input.", metavar="PROMPT")
]
TEXTS = (
    "File of prompts: a text per line, JSON lines or a JSON array; - reads it from standard input."
)
Prompts = Annotated[str, typer.Argument(help=TEXTS)]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Gguf = Annotated[
    str | None, typer.Option("--gguf", help="GGUF file in the target's folder or repository.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the chat template.")]
System = Annotated[str | None, typer.Option(help="System text of the chat template.")]
TEMPLATE = (
    "Argument of the chat template, such as enable_thinking=false, or the name of one; repeatable."
)
Template = Annotated[list[str], typer.Option("--template", help=TEMPLATE)]
STOP = r"Text that ends answers (\n: line end); repeatable; default: the certified ones."
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text.")]
Seed = Annotated[int, typer.Option(help="Seed of random numbers.")]


@dataclass(frozen=True)
class Asking:
    """How a target is loaded, and how prompts are put to it."""

    dtype: Dtype = "auto"
    gguf: Gguf = None
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.", min=1)
    ] = 256
    stop: Annotated[list[str], typer.Option("--stop", help=STOP)] = ()  # type: ignore[assignment]
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
        """Texts that end the answer; a shell hands over what means a line end or a tab as two
        characters.
        """
        meant = {"n": "\n", "t": "\t", "\\": "\\"}
        return [
            re.sub(r"\\([nt\\])", lambda found: meant[found[1]], text) for text in self.stop if text
        ]


PANEL = "Decoder"  # heading of the decoder's options in a command's help


def option(help: str, *names: str, panel: str | None = PANEL, **limits: Any) -> Any:
    """An option of the decoder, or of another panel; None is the usual one."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **limits)


plain_option = partial(option, panel=None)
"""An option of a command alone."""

NAMED = {"settings": ["--set"], "guards": ["--guard"]}  # fields whose options have other names
SHARE = {"min": 0, "max": 1}
LIMITS: dict[str, Any] = {"block": {"min": 0}, "budget": SHARE, "confidence": SHARE}
KINDS: dict[str, Any] = {
    "block": int | None,
    **dict.fromkeys(("settings", "guards"), list[str]),
}  # if no text
KINDS |= dict.fromkeys(("budget", "confidence"), float | None)
DECODER: dict[str, Any] = {  # the fields of `DecodeOptions` as options
    name: option(hint.__metadata__[0], *NAMED.get(name, ()), **LIMITS.get(name, {}))
    for name, hint in get_type_hints(DecodeOptions, include_extras=True).items()
}


def decodes(**usual: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters `asking` and `options` become options; `usual` has other defaults,
    None for none.
    """
    fields = inspect.signature(Asking, eval_str=True).parameters
    asked = [item.replace(default=usual.get(name, item.default)) for name, item in fields.items()]
    asked = [item for item in asked if item.name not in usual or item.default is not None]
    defaults = {**vars(DecodeOptions()), "settings": (), "guards": ()}
    kinds = {name: Annotated[KINDS.get(name, str | None), said] for name, said in DECODER.items()}
    decoder = [parameter(name, kind, defaults[name]) for name, kind in kinds.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            asking = Asking(**{item.name: given.pop(item.name) for item in asked})
            named = {name: given.pop(name) for name in DECODER}
            options = DecodeOptions(**{**named, "settings": parse_settings(named["settings"])})
            command(**given, asking=asking, options=options)

        parts = {"asking": asked, "options": decoder}
        own = inspect.signature(command, eval_str=True).parameters.items()
        return typed(run, [part for name, item in own for part in parts.get(name, [item])])

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


def refuse_options(options: DecodeOptions, names: Sequence[str], why: str) -> None:
    """Refuse wishes that a command would not follow."""
    for name in names:
        if getattr(options, name) not in (getattr(DecodeOptions(), name), []):
            shown = {"settings": "set", "guards": "guard"}.get(name, name.replace("_", "-"))
            raise UserError(f"--{shown} {why}. Leave that option out.")


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """While open, an import that fails says which `extra` has the library."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"This needs '{error.name}'. Run `pip install '.[{extra}]'` in GistGate's clone."
        ) from error
