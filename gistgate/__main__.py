"""`python -m gistgate` is the command `gistgate`."""

from __future__ import annotations

from gistgate.cli.main import main

if __name__ == "__main__":
    main()
