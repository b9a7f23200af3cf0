"""Speeds and memory, side by side in one run; each module is a command.

Threads of an OpenMP team that sleep between two parallel regions take tens of microseconds to wake up, which a draft
step of two hundred small products pays for each of them. They wait for a fraction of a millisecond before they sleep.
The variable is set here because libgomp reads it when torch is imported; it wins over OMP_WAIT_POLICY.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
