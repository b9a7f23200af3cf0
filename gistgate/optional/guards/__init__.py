"""Guards: what watches a request and takes looseness away when something looks wrong."""

from gistgate.optional.guards.base import CLOSED, Guard
from gistgate.optional.guards.domain import DomainGuard
from gistgate.optional.guards.loop import LoopGuard

__all__ = ["CLOSED", "DomainGuard", "Guard", "LoopGuard"]
