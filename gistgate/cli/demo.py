"""The command `gistgate demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.build.asking import Asking
from gistgate.build.wishes import Wishes
from gistgate.cli.options import Chat, Dtype, Gguf, Length, Stops, System, TargetName, with_wishes


@with_wishes
def demo(
    target: TargetName,
    *,
    wishes: Wishes,
    dtype: Dtype = "auto",
    gguf: Gguf = None,
    max_new_tokens: Length = 256,
    stop: Stops = [],  # noqa: B006 (Typer's form of an option that can be repeated)
    chat: Chat = False,
    system: System = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open a local page: type a prompt and watch loose and strict decoding token by token."""
    from gistgate.cli.decode import load
    from gistgate.demo.playground import Playground, knob_values
    from gistgate.demo.server import launch
    from gistgate.pages.claims import claim

    def playground() -> Playground:
        loaded = load(target, dtype, wishes, Asking(chat=chat, system=system), gguf)
        rule = slider_rule(loaded.decoder)
        return Playground(
            loaded.decoder,
            loaded.target,
            rule,
            {value: claim(loaded.wishes, loaded.decoder, rule, value, loaded.uncovered) for value in knob_values(rule)},
            name=heading(gguf or target, wishes),
            max_new_tokens=max_new_tokens,
            request=loaded.request(max_new_tokens, stop),
            chat=chat,
            system=system,
        )

    launch(playground, port, browser=browser, say=typer.echo)


def heading(target: str, wishes: Wishes) -> str:
    """The names of the models, or of their GGUF files, without their folders."""
    draft = wishes.draft_gguf or wishes.draft
    return " and ".join(Path(str(name)).name for name in (target, draft) if name is not None)


def slider_rule(decoder: Any) -> Any:
    """The rule whose knob is on the slider: the decoder's, or that of its gate where the decoder runs strictly."""
    from gistgate.build.choose import GATED
    from gistgate.rules import make_rule

    runs_strictly = decoder.rule.knob is None and decoder.parts.gate is not None
    return make_rule(GATED) if runs_strictly else decoder.rule
