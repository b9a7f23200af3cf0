"""The command that hands over to lm-eval."""

from __future__ import annotations

import sys

import typer


def evaluate(context: typer.Context) -> None:
    """Run lm-eval with the model `gistgate`; takes lm-eval's own arguments (try: gistgate eval run --help)."""
    from gistgate.integrations.lm_eval.__main__ import main as harness

    sys.argv = ["gistgate eval", *context.args]
    harness()
