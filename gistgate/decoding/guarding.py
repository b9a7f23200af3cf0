"""Who settles a block: by default the rule alone."""

from __future__ import annotations

from collections.abc import Sequence

from gistgate.block import Acceptance, Block
from gistgate.request.rows import Row
from gistgate.rules.base import Rule, State, settle


class Unguarded:
    """The rule decides alone, and nobody looks at the texts."""

    layers: frozenset[str] = frozenset()
    """Hidden states that a block has to carry for the guards."""

    def settle(self, rule: Rule, block: Block, state: State, rows: Sequence[Row]) -> Acceptance:
        """What of the block stays; `rows` are those of the block, one for every path."""
        return settle(rule, block, state)

    def committed(self, rows: Sequence[Row]) -> None:
        """Look at the texts after the accepted tokens were appended and counted."""
