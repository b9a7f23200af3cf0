"""Nearest keys by inner product: exactly, or by FAISS where an exact search would read for too long.

FAISS (arXiv 2401.08281) keeps compressed keys: it proposes more neighbours than asked for, and the stored float16 keys
rank them again. It needs the optional extra `retrieval` (faiss-cpu).

Axis letters: Q queries, N keys, P width of a key, R proposed neighbours.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gistgate.core.utils import UserError
from gistgate.retrieval.store import Datastore

CHUNK = 1 << 18
"""Keys that are compared at once: bounds the memory of the scores."""


class Index(Protocol):
    """Finds the stored keys that are nearest to a query."""

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The `k` nearest of all keys, fewer where there are fewer.

        Args:
            queries: unit vectors [Q, P], float32.
            k: neighbours.

        Returns:
            Cosines [Q, k'] and numbers of the keys [Q, k'], on the CPU, best first. An approximate index that finds
            fewer for some query fills up with the number -1.
        """
        ...


class ExactIndex:
    """Compares the query with every key, in chunks."""

    def __init__(self, keys: Tensor, device: torch.device | str = "cpu") -> None:
        """`keys [N, P]` in float16; a CPU multiplies float32, which takes a copy in memory."""
        half = torch.device(device).type != "cpu"
        self.keys = keys.to(device, torch.float16 if half else torch.float32)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        queries = queries.to(self.keys)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(self.keys), CHUNK):
            cosines_QN = queries @ self.keys[start : start + CHUNK].T
            values, places = cosines_QN.topk(min(k, cosines_QN.shape[1]), dim=-1)
            best = (values, places + start) if best is None else merge(best, (values, places + start), k)
        if best is None:
            return torch.zeros(len(queries), 0), torch.zeros(len(queries), 0, dtype=torch.long)
        return best[0].float().cpu(), best[1].cpu()


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The `k` best of two lists of (cosines, numbers), each [Q, ...]."""
    cosines, numbers = torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1)
    values, places = cosines.topk(min(k, cosines.shape[1]), dim=-1)
    return values, numbers.gather(1, places)


KINDS = ("ivf", "hnsw")
ROUNDS = 4
"""Rounds of the clustering that finds the lists; FAISS's own 10 take most of the time of a large index."""
POINTS_PER_LIST = 40
"""Keys that the clustering of an inverted file sees per list: FAISS asks for 39 at least."""


def import_faiss() -> Any:
    """The library."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise UserError(
            "Searching by FAISS needs faiss-cpu. Run `pip install '.[retrieval]'` in the clone of GistGate."
        ) from error


class FaissIndex:
    """An inverted file or a graph in front of the stored keys."""

    def __init__(self, index: Any, keys: Tensor, effort: int = 16, refine: int = 16) -> None:
        """Put an index in front of `keys [N, P]`, float16.

        Args:
            index: a FAISS index of the same keys in the same order.
            keys: what the proposed neighbours are ranked by.
            effort: lists visited (nprobe) or candidates kept on the way (efSearch).
            refine: proposed neighbours for every one that is asked for.
        """
        if (index.ntotal, index.d) != tuple(keys.shape):
            raise UserError(
                f"The FAISS index holds {index.ntotal} keys of width {index.d}, the datastore {keys.shape[0]} of "
                f"{keys.shape[1]}. Build the datastore again."
            )
        if effort < 1 or refine < 1:
            raise UserError(f"FAISS: effort {effort} and refine {refine} are both 1 or more. Raise the smaller one.")
        self.index, self.keys, self.effort, self.refine = index, keys, effort, refine
        self._faiss = import_faiss()

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        most = min(k * self.refine, len(self.keys))
        numbers_QR = torch.from_numpy(
            self.index.search(queries.float().cpu().contiguous().numpy(), most, params=self._parameters())[1]
        )
        found_QRP = self.keys[numbers_QR.clamp_min(0)].float()
        cosines_QR = torch.einsum("qp,qrp->qr", queries.float().cpu(), found_QRP)
        cosines_QR = cosines_QR.masked_fill(numbers_QR < 0, -torch.inf)
        values, places = cosines_QR.topk(min(k, most), dim=-1)
        return values, numbers_QR.gather(1, places)

    def _parameters(self) -> Any:
        """The effort as FAISS wants it; a graph has to keep as many candidates as it proposes."""
        if isinstance(self.index, self._faiss.IndexHNSW):
            return self._faiss.SearchParametersHNSW(efSearch=self.effort)
        return self._faiss.SearchParametersIVF(nprobe=self.effort)


def new_index(kind: Literal["ivf", "hnsw"], num_keys: int, size: int) -> Any:
    """An empty FAISS index for so many keys of width `size`.

    "ivf": 4 sqrt(N) lists of product-quantised keys, 4 dimensions to a byte; the lists are found by a small graph.
    "hnsw": a graph over 8-bit keys.
    """
    faiss = import_faiss()
    if kind not in KINDS or size % 4:
        raise UserError(f"There is no FAISS index '{kind}' of width {size}. Use ivf or hnsw and a multiple of 4.")
    description = f"IVF{num_lists(num_keys)}_HNSW32,PQ{size // 4}x8" if kind == "ivf" else "HNSW32,SQ8"
    index = faiss.index_factory(size, description, faiss.METRIC_INNER_PRODUCT)
    if kind == "ivf":
        index.cp.niter, index.do_polysemous_training = ROUNDS, False  # the latter is for filtering by code, unused here
    return index


def num_lists(num_keys: int) -> int:
    """4 sqrt(N), as long as every list has keys enough to be learned."""
    return max(1, min(round(4 * sqrt(num_keys)), num_keys // POINTS_PER_LIST))


def fill(index: Any, sample: Tensor, chunks: Iterable[Tensor]) -> Any:
    """Learn from `sample [n, P]`, then add every chunk `[n, P]` in order."""
    index.train(sample.float().contiguous().numpy())
    for chunk in chunks:
        index.add(chunk.float().contiguous().numpy())
    return index


def write_index(index: Any, path: str | Path) -> None:
    """Write an index file."""
    import_faiss().write_index(index, str(path))


def read_index(path: str | Path) -> Any:
    """Open an index file without reading all of it."""
    faiss = import_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-80:]
        raise UserError(f"{path} is damaged or no FAISS index ({reason}). Build the datastore again.") from error


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
