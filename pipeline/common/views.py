"""Two views of the results: the core methods, and the large table with every rule."""

from __future__ import annotations

import sys

from gistgate.errors import UserError
from pipeline.params import Params, read_params


def params_of_view() -> Params:
    """The parameters of the view that the command line names: nothing for the core, `table` for the large table.

    Raises:
        UserError: it names something else.
    """
    if sys.argv[1:] not in ([], ["table"]):
        raise UserError(f"There is no view '{' '.join(sys.argv[1:])}'. Say `table`, or nothing for the core methods.")
    params = read_params()
    return params.with_table() if sys.argv[1:] else params
