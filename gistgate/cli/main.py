"""The command line: gistgate generate | inspect | calibrate | trace | bench | demo | eval.

Errors are one sentence and exit status 1.
"""

from __future__ import annotations

import sys
import warnings
from io import TextIOWrapper

import typer

from gistgate.cli import calibrate, decode, demo, doctor, evaluate, inspect
from gistgate.errors import UserError
from gistgate.plain import printable

app = typer.Typer(
    help="Speculative decoding that keeps a draft token when it keeps the meaning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def example(arguments: str) -> str:
    """The last line of a command's help."""
    return f"Example: gistgate {arguments}"


app.command(epilog=example('generate models/target "Tom has five apples" --draft models/draft --gate models/export'))(
    decode.generate
)
app.command(epilog=example("inspect models/export"))(inspect.inspect)
app.command(epilog=example("calibrate --task gsm8k --gate models/export --budget 0.02"))(calibrate.calibrate)
app.command(epilog=example('trace models/target "Tom has" --draft models/draft --gate models/export'))(decode.trace)
app.command(epilog=example("bench models/target prompts.txt --draft models/draft --rule fly"))(decode.bench)
app.command(epilog=example("doctor models/target prompts.txt --draft models/draft"))(doctor.doctor)
app.command(epilog=example("demo models/target --draft models/draft --gate models/export"))(demo.demo)
app.command(
    "eval",
    epilog=example("eval run --model gistgate --model_args pretrained=TARGET,draft=DRAFT,gate=GATE --tasks gsm8k"),
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)(evaluate.evaluate)


def main() -> None:
    """Run a command; errors that a person can mend and warnings become one sentence each."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {printable(str(message))}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # half characters in a file must not end a command
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
