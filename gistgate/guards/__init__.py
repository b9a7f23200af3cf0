"""Guards: what watches a request and takes looseness away when something looks wrong."""

from gistgate.guards.base import CLOSED, Guard
from gistgate.guards.domain import DomainGuard
from gistgate.guards.loop import LoopGuard

__all__ = ["CLOSED", "DomainGuard", "Guard", "LoopGuard"]
