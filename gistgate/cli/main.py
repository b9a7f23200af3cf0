"""The command line `gistgate`; COMMANDS lists its commands."""

import inspect
import sys
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer

import gistgate
from gistgate.cli import decode, tools
from gistgate.cli.calibrate import calibrate
from gistgate.cli.certify import certify, present_name
from gistgate.cli.doctor import doctor
from gistgate.cli.init import init
from gistgate.cli.tune import tune
from gistgate.core.utils import INTERRUPTED, UserError, is_out_of_memory, printable

WITH_GATE = "--draft models/draft --gate models/export"
VOCABULARY = "models/target answers.txt --draft models/draft"
COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "certify": (
        certify,
        "--baseline http://HOST:8000/v1 --candidate http://HOST:8001/v1 --file prompts.jsonl"
        " --budget 0.02",
    ),
    "doctor": (doctor, "models/target prompts.txt --draft models/draft"),
    "init": (
        init,
        "my-gate --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --task gsm8k",
    ),
    "calibrate": (calibrate, "--task gsm8k --gate models/export --budget 0.02"),
    "tune": (tune, f"models/target prompts.txt {WITH_GATE}"),
    "generate": (decode.generate, f'models/target "Tom has five apples" {WITH_GATE}'),
    "trace": (decode.trace, f'models/target "Tom has" {WITH_GATE}'),
    "inspect": (tools.inspect, "models/export"),
    "bench": (decode.bench, "models/target prompts.txt --draft models/draft --rule fly"),
    "eval": (
        tools.evaluate,
        "run --model gistgate --model_args pretrained=TARGET,draft=DRAFT,gate=GATE --tasks gsm8k",
    ),
    "export": (tools.export, "models/heads/logistic my-export"),
    "fit-draft": (
        tools.fit_draft,
        "models/target prompts.txt --draft models/draft --block 12 --out stop.json",
    ),
    "draft-vocabulary": (tools.draft_vocabulary, f"{VOCABULARY} --size 16384 --out words.json"),
}
"""The function of each command, and the arguments of its example."""
SETTINGS: dict[str, dict[str, Any]] = {
    "certify": {"token_normalize_func": present_name},
    # All arguments of `eval` are read by lm-eval itself, --help included.
    "eval": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
}
"""How some commands read their arguments."""

app = typer.Typer(
    help=(
        "Certify what a faster decoder costs, and decode faster: speculative decoding that keeps a"
        " draft token when it keeps the meaning."
    ),
    epilog=(
        "Exit status: 0 success, 1 an error in one sentence, 2 wrong options, 130 interrupted with"
        " Ctrl-C; that of certify says the verdict (gistgate certify --help)."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(is_wanted: bool) -> None:
    """Print the version and leave."""
    if is_wanted:
        print(gistgate.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


for name, (function, arguments) in COMMANDS.items():
    example = f"Example: gistgate {name} {arguments}"
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, help=text, epilog=example, context_settings=SETTINGS.get(name))(function)


def main() -> None:
    """Run a command; errors that a person can mend and warnings become one sentence each."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {printable(str(message))}\n"
    for stream in (sys.stdout, sys.stderr):
        # Half characters in a file must not end a command, and both streams may go to one file.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        app()
    except UserError as error:
        leave(str(error))
    except SystemExit as left:
        if left.code == INTERRUPTED:
            leave("Interrupted.", INTERRUPTED)
        raise
    except OSError as error:
        if error.errno is None:  # a hub or a dataset that cannot be reached, or is not there
            leave(f"{type(error).__name__}: {error}")
        place = error.filename or "The output"
        leave(
            f"{place} could not be read or written ({error.strerror}). Mend that and repeat the"
            " command."
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        leave(
            "Memory ran out. Ask for shorter answers (--max-new-tokens), load smaller weights"
            " (--dtype bfloat16), or decode fewer rows together (--batch-size, where the command"
            " has it)."
        )


def leave(sentence: str, status: int = 1) -> None:
    """End the process with one line."""
    print(printable(" ".join(sentence.split())), file=sys.stderr)
    raise SystemExit(status) from None
