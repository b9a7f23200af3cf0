"""Nearest keys by FAISS, for stores that an exact search would read for too long (arXiv 2401.08281).

FAISS keeps compressed keys: it proposes more neighbours than asked for, and the stored float16 keys rank them again.
Needs the optional extra `retrieval` (faiss-cpu).

Axis letters: Q queries, N keys, P width of a key, R proposed neighbours.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gistgate.errors import UserError

KINDS = ("ivf", "hnsw")
ROUNDS = 4
"""Rounds of the clustering that finds the lists; FAISS's own 10 take most of the time of a large index."""
POINTS_PER_LIST = 40
"""Keys that the clustering of an inverted file sees per list: FAISS asks for 39 at least."""


def import_faiss() -> Any:
    """The library.

    Raises:
        UserError: it is not installed.
    """
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

        Raises:
            UserError: index and keys are of different number or width, or a setting below 1.
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

    Raises:
        UserError: no such kind, or a width that does not divide.
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
    """Open an index file without reading all of it.

    Raises:
        UserError: FAISS cannot read it.
    """
    faiss = import_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-80:]
        raise UserError(f"{path} is damaged or no FAISS index ({reason}). Build the datastore again.") from error
