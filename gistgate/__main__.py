"""`python -m gistgate` is the command `gistgate`."""

from gistgate.cli.main import main

if __name__ == "__main__":
    main()
