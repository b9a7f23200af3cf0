"""The exceptions whose message is meant for a person, and what a person meets of others."""


class UserError(Exception):
    """Something the user can mend. The message is one sentence or two: the cause, then the remedy."""


class Interrupted(Exception):  # noqa: N818 (nothing is wrong)
    """The user pressed Ctrl-C."""


def first_line(error: BaseException) -> str:
    """The beginning of a message, without its full stop; the error's name where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(". ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or in the machine; torch says so in several ways."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
    )
