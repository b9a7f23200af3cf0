"""A store of target states and what followed them, and how the nearest are found."""

from gistgate.retrieval.projection import Projection
from gistgate.retrieval.store import Datastore

__all__ = ["Datastore", "Projection"]
