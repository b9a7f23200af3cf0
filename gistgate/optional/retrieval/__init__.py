"""A store of target states and what followed them, and how the nearest are found."""

from gistgate.optional.retrieval.projection import Projection
from gistgate.optional.retrieval.store import Datastore

__all__ = ["Datastore", "Projection"]
