"""lm-eval's own command line with the model `gistgate`, whose module `python -m` would load and
register twice.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gistgate.core.utils import UserError, printable
from gistgate.models.options import NAMES

ALLOW = "--allow-code"  # ours and lm-eval's, for the same consent
CONFIRM = "--confirm_run_unsafe_code"
THEIRS = {
    "--chat": "--apply_chat_template",
    "--template": "--apply_chat_template",
    "--system": "--system_instruction",
    "--set": "--model_args",
    "--guard": "--model_args guards=NAME",
    "--quantise": "--model_args quantise=VALUE",
    **{f"--{name.replace('_', '-')}": f"--model_args {name}=VALUE" for name in NAMES},
}
"""What lm-eval's command line has in place of options of the other commands."""


def main() -> None:
    """Run lm-eval; what a person can mend becomes one sentence."""
    try:
        import lm_eval.__main__ as harness
    except ImportError:
        raise SystemExit(
            "lm-eval is not installed. Run `pip install '.[pipeline]'` in GistGate's clone."
        ) from None
    if len(sys.argv) < 2 or "-h" in sys.argv or "--help" in sys.argv:
        harness.cli_evaluate()  # help asks no model, whose libraries take seconds
        return
    from gistgate.lm_eval import model  # noqa: F401 (registers the model)
    from gistgate.lm_eval.files import checking_documents
    from gistgate.lm_eval.settings import checking_settings
    from gistgate.tasks.code import own_code_eval

    if ALLOW in sys.argv:
        sys.argv[sys.argv.index(ALLOW)] = CONFIRM
    check_options(sys.argv)
    try:
        # Programs of a model run with our limits.
        with (
            explaining_consent(),
            own_code_eval(),
            checking_documents(),
            checking_settings(),
        ):
            harness.cli_evaluate()
    except UserError as error:
        leave(in_their_words(str(error)))
    except Exception as error:
        if isinstance(error, OSError) or not is_theirs(error):
            raise
        cause = str(error).strip().rstrip(".")
        leave(f"lm-eval refuses that ({type(error).__name__}: {cause}). Correct the options.")


def leave(sentence: str) -> None:
    """End the process with one line."""
    print(printable(" ".join(sentence.split())), file=sys.stderr)
    raise SystemExit(1) from None


def check_options(arguments: list[str]) -> None:
    """Leave where an option has another name here; lm-eval's have no dash inside."""
    for argument in arguments:
        name = re.match(r"--[a-z][a-z-]*(?==|$)", argument)
        if name is None:
            continue
        theirs = in_their_words(name[0])
        if theirs == name[0]:
            theirs = "--" + name[0][2:].replace("-", "_")
        if theirs != name[0]:
            leave(f"lm-eval has no option {name[0]}. Write {theirs}.")


def in_their_words(sentence: str) -> str:
    """A sentence with lm-eval's options in place of those of the other commands."""
    return re.sub("--[a-z][a-z-]*", lambda name: THEIRS.get(name[0], name[0]), sentence)


def is_theirs(error: Exception) -> bool:
    """Whether lm-eval raised an error over what it was told, and not our code or a model; a log
    level of DEBUG shows where.
    """
    ours = Path(__file__).parents[1]
    packages = []
    for frame in traceback.extract_tb(error.__traceback__):
        place = Path(frame.filename)
        if place.is_relative_to(ours):
            packages.append("gistgate")
        elif "site-packages" in place.parts:
            packages.append(place.parts[place.parts.index("site-packages") + 1])
    is_loud = os.environ.get("LMEVAL_LOG_LEVEL") == "DEBUG"
    return packages[-1:] in (["lm_eval"], ["yaml"], ["datasets"]) and not is_loud


@contextmanager
def explaining_consent() -> Iterator[None]:
    """While open, lm-eval's own refusal to run programs becomes ours."""
    from gistgate.tasks.code import check_allowed

    try:
        yield
    except ValueError as error:
        if CONFIRM.strip("-") in str(error):
            _, _, sentence = str(error).partition(": ")  # which begins with the task's name
            check_allowed(sentence.split(" ")[0], unsafe=True, allowed=False)
        raise


if __name__ == "__main__":
    main()
