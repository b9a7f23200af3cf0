"""lm-eval's own command line with the model `gistgate`, whose module `python -m` would load and
register twice.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gistgate.core.utils import UserError, printable

ALLOW = "--allow-code"  # ours and lm-eval's, for the same consent
CONFIRM = "--confirm_run_unsafe_code"


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
    from gistgate.tasks.code import own_code_eval

    if ALLOW in sys.argv:
        sys.argv[sys.argv.index(ALLOW)] = CONFIRM
    try:
        with explaining_consent(), own_code_eval():  # programs of a model run with our limits
            harness.cli_evaluate()
    except UserError as error:
        print(printable(str(error)), file=sys.stderr)
        raise SystemExit(1) from error


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
