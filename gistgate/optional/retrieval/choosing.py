"""How a store is searched: exactly while that is quick, by its stored FAISS index beyond."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch

from gistgate.optional.retrieval.approximate import FaissIndex, read_index
from gistgate.optional.retrieval.search import ExactIndex, Index
from gistgate.optional.retrieval.store import Datastore

EXACT_KEYS = {"cpu": 16_384, "cuda": 2_000_000}
"""Most keys that are all compared with a query, by device type. 100 000 take 3.7 ms of one core; two million of width
64 are 256 MB of float16 on a GPU."""
PROBED_LISTS, PROPOSALS = 4, 64
"""Lists that a query visits, and proposed neighbours for every one asked for: recall@8 of 0.99 at 0.1 million keys."""


def index_for(store: Datastore, device: torch.device | str = "cpu") -> Index:
    """What finds the nearest keys of `store`, for queries on `device`; exact again where FAISS is missing."""
    kind = torch.device(device).type
    if fits_exactly(store.config.num_keys, kind) or store.index_file is None:
        return ExactIndex(store.keys, device)
    if find_spec("faiss") is None:
        warnings.warn(
            "Without faiss-cpu every query reads all keys. Run `pip install '.[retrieval]'` in the clone of GistGate.",
            stacklevel=2,
        )
        return ExactIndex(store.keys, device)
    return FaissIndex(read_index(store.index_file), store.keys, PROBED_LISTS, PROPOSALS)


def fits_exactly(num_keys: int, kind: str = "cpu") -> bool:
    """Whether an exact search is quick enough on a device of this type."""
    return num_keys <= EXACT_KEYS.get(kind, EXACT_KEYS["cpu"])
