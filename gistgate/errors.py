"""The one exception whose message is meant for a person."""


class UserError(Exception):
    """Something the user can mend. The message is one sentence or two: the cause, then the remedy."""
