"""Answers that several requests draft from: whose they are is said once, and the oldest leave first."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from gistgate.drafters.suffix_tree import SuffixTree, Text
from gistgate.errors import UserError


class SharedSuffixes:
    """A suffix tree for the answers of several requests and decoders of one process, bounded in tokens.

    What one request wrote becomes a proposal for another, so texts can be told from the speed of others, and under
    loose rules from their texts as well. Nothing is shared unless a drafter is given such an object and the scope
    that fits it. Whoever reads or changes it holds `lock`.
    """

    def __init__(self, capacity: int = 100_000, depth: int = 32, tenant: str | None = None) -> None:
        """An empty tree.

        Args:
            capacity: tokens held at most, about 1 kB each; texts leave whole, the oldest first.
            depth: longest run of tokens that is counted, match and proposal together.
            tenant: whose requests it serves; None: everybody's.

        Raises:
            UserError: a size out of range, or a tenant without a name.
        """
        if capacity < 1 or depth < 2:
            raise UserError(
                f"suffix: a shared capacity of {capacity} or depth of {depth} tokens is too small. "
                "Take at least 1 and 2."
            )
        if tenant is not None and not tenant:
            raise UserError("suffix: the tenant has no name. Name one, or leave tenant away to serve everybody.")
        self.capacity, self.tenant = capacity, tenant
        self.tree = SuffixTree(depth)
        self.lock = Lock()
        self.size = 0
        """Tokens held."""
        self._texts: list[Text] = []

    def extend(self, text: Text, ids: Sequence[int]) -> None:
        """`text` goes on with `ids`; texts that no longer fit are taken out, if need be this one as well."""
        for token in ids:
            if not text.ids:
                self._texts.append(text)
            self.tree.append(text, token)
            self.size += 1
            if self.size > self.capacity:
                self.forget(self._texts[0])

    def forget(self, text: Text) -> None:
        """Take a text out."""
        if text.ids:
            self._texts.remove(text)
            self.size -= len(text.ids)
            self.tree.remove(text)
