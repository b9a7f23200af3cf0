"""Nearest keys by inner product: exactly, or by FAISS (arXiv 2401.08281) where an exact search
would read for too long: its compressed keys propose more neighbours than asked for, and the stored
float16 keys rank them again.

Axis letters: N keys, P width of a key, R proposed neighbours.
"""

import warnings
from importlib import import_module
from importlib.util import find_spec
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from gistgate.core.utils import UserError
from gistgate.retrieval.store import Datastore

ADDED = 1 << 14
"""Keys that are added to an index at once."""
ROUNDS = 4
"""Rounds of the clustering that finds the lists; FAISS's own 10 take most of the time of a large
index."""
POINTS_PER_LIST = 40
"""Keys that the clustering of an inverted file sees per list: FAISS asks for 39 at least."""
EXACT_KEYS = {"cpu": 16_384, "cuda": 2_000_000}
"""Most keys that are all compared with a query, by device type. 100 000 take 3.7 ms of one core;
two million of width 64 are 256 MB of float16 on a GPU."""
WITHOUT_FAISS = "Run `pip install '.[retrieval]'` in the clone of GistGate."


class ExactIndex:
    """Compares the query with every key."""

    def __init__(self, keys: Tensor, device: torch.device | str = "cpu") -> None:
        """`keys [N, P]` in float16; a CPU multiplies float32, which takes a copy in memory."""
        on_cpu = torch.device(device).type == "cpu"
        self.keys = keys.to(device, torch.float32 if on_cpu else torch.float16)

    def search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The `k` keys nearest to a unit vector `query [P]`, fewer where there are fewer.

        Returns cosines [k] and numbers of the keys [k], on the CPU, best first.
        """
        cosines_N = self.keys @ query.to(self.keys)
        best, numbers = cosines_N.topk(min(k, len(cosines_N)))
        return best.float().cpu(), numbers.cpu()


class FaissIndex:
    """An inverted file in front of the stored keys."""

    effort = 4
    """Lists in which FAISS looks."""
    refine = 64
    """How many times as many neighbours as asked for are ranked by the stored keys."""

    def __init__(self, index: Any, keys: Tensor) -> None:
        """Rank what `index` finds by `keys [N, P]`, float16."""
        self.index = index
        self.keys = keys

    def search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As of `ExactIndex`; where fewer are found, the number -1 fills up."""
        parameters = import_faiss().SearchParametersIVF(nprobe=self.effort)
        num = min(k * self.refine, len(self.keys))
        query = query.float().cpu()
        _, numbers = self.index.search(query[None].numpy(), num, params=parameters)
        numbers_R = torch.from_numpy(numbers[0])
        cosines_R = self.keys[numbers_R.clamp_min(0)].float() @ query
        cosines_R[numbers_R < 0] = -torch.inf
        values, places = cosines_R.topk(min(k, num))
        return values, numbers_R[places]


Index = ExactIndex | FaissIndex


def index_for(store: Datastore, device: torch.device | str = "cpu") -> Index:
    """What finds the nearest keys of `store`, for queries on `device`; exact again where FAISS is
    missing.
    """
    fits = fits_exactly(store.config.num_keys, torch.device(device).type)
    if store.index_file is not None and not fits:
        if find_spec("faiss"):
            faiss = import_faiss()
            mapped = faiss.read_index(str(store.index_file), faiss.IO_FLAG_MMAP_IFC)
            return FaissIndex(mapped, store.keys)
        message = f"Without faiss-cpu every query reads all keys. {WITHOUT_FAISS}"
        warnings.warn(message, stacklevel=2)
    return ExactIndex(store.keys, device)


def fits_exactly(num_keys: int, kind: str = "cpu") -> bool:
    """Whether an exact search is quick enough on a device of this type."""
    return num_keys <= EXACT_KEYS.get(kind, EXACT_KEYS["cpu"])


def import_faiss() -> Any:
    """Return the library, or raise a UserError that says how to install it."""
    try:
        return import_module("faiss")
    except ImportError as error:
        raise UserError(f"Searching by FAISS needs faiss-cpu. {WITHOUT_FAISS}") from error


def new_index(num_keys: int, size: int) -> Any:
    """An empty FAISS index for so many keys of width `size`: lists of product-quantised keys behind
    a small graph.
    """
    faiss = import_faiss()
    if size % 4:
        raise UserError(f"FAISS takes no keys of width {size}. Use a multiple of 4 as key_size.")
    # Each list has enough keys to be learned, and four dimensions become a byte.
    lists = max(1, min(round(4 * sqrt(num_keys)), num_keys // POINTS_PER_LIST))
    description = f"IVF{lists}_HNSW32,PQ{size // 4}x8"
    index = faiss.index_factory(size, description, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = ROUNDS
    index.do_polysemous_training = False  # it is for filtering by code
    return index


def fill(index: Any, keys: Tensor) -> Any:
    """Learn from some keys of `keys [N, P]`, always the same ones, then add all of them in
    order.
    """
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    sample = keys[order[: POINTS_PER_LIST * index.nlist]]
    index.train(sample.float().contiguous().numpy())
    for chunk in keys.split(ADDED):
        index.add(chunk.float().contiguous().numpy())
    return index
