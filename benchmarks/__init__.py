"""Speeds and memory, side by side in one run; each module is a command."""

import pipeline  # noqa: F401  sets the environment that torch reads when a benchmark imports it
