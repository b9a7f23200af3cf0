"""The harness's own command line with the model `gistgate` registered; see the package's docstring.

A separate module, because `python -m` would load the one with the class a second time and register it twice.
"""

from __future__ import annotations

import sys

from gistgate.errors import UserError


def main() -> None:
    """Run lm-eval; what a person can mend becomes one sentence."""
    try:
        import lm_eval.__main__ as harness
    except ImportError:
        print("lm-eval is not installed. Install it with `pip install gistgate[pipeline]`.", file=sys.stderr)
        raise SystemExit(1) from None
    from gistgate.integrations.lm_eval import model  # noqa: F401 (registers the model)

    try:
        harness.cli_evaluate()
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
