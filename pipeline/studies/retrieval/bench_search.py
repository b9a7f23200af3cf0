"""What finding neighbours costs at 0.1, 1 and 10 M keys, and what an approximate index loses.

    python -m pipeline.studies.retrieval.bench_search [--keys 100000,1000000,10000000] [--kinds ivf,hnsw]

In the folder of a finished run with a datastore (`make retrieval`). Keys are the target's states along the training
prompts, then synthetic ones: a real state moved along the `RANK` first principal directions of all, by `SPREAD` of
their deviation. States pass the datastore's projection chunk by chunk; only their keys are kept, in a file. Queries are
states along strict answers to development prompts. Recall is counted against exact inner products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts, names
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.optional.retrieval.approximate import (
    POINTS_PER_LIST,
    FaissIndex,
    fill,
    import_faiss,
    new_index,
    num_lists,
)
from gistgate.optional.retrieval.projection import Projection
from gistgate.optional.retrieval.search import ExactIndex, Index
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import read_params
from pipeline.studies.retrieval.datastore import states_of
from pipeline.studies.retrieval.drafters import store_for
from pipeline.studies.retrieval.texts import Text, training_texts

RANK, SPREAD = 32, 0.3
"""Principal directions that synthetic states are moved along, and how far, in standard deviations of each."""
CHUNK = 1 << 16
"""States that exist at once."""
CENTRES = 1 << 15
"""Real states that synthetic ones are made from."""
EFFORTS = {"ivf": (1, 4, 16, 64, 256), "hnsw": (16, 64, 128, 256, 512)}
"""Lists visited, or candidates kept on the way."""
REFINES = (4, 16, 64, 256)
"""Proposed neighbours for every one asked for; a graph, whose keys are hardly compressed, has the middle one alone."""
NEIGHBOURS, SHARE = 8, 0.05
"""Neighbours that are asked for, and the share of a round that retrieval may take."""


def main(
    keys: str = "100000,1000000,10000000",
    kinds: str = "ivf,hnsw",
    queries: int = 200,
    graph_keys: int = 100_000,
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    """`graph_keys`: most keys of an hnsw index, which is slow to build."""
    torch.set_num_threads(threads)
    sizes, indices = sorted(counts(keys, "--keys")), names(kinds, EFFORTS, "is no kind of index")
    if sizes[0] < NEIGHBOURS:
        raise UserError(f"--keys {keys}: a size is {NEIGHBOURS} or more. Give whole numbers with commas between them.")
    import_faiss().omp_set_num_threads(threads)
    source = Source.load(queries)
    with TemporaryDirectory() as folder:
        stored, rate = source.write(Path(folder) / "keys", sizes[-1])
        found = {}
        for size in sizes:
            chosen = [kind for kind in indices if kind != "hnsw" or size <= graph_keys]
            found[str(size)] = measure(stored[:size], source.queries, chosen)
            payload = {
                "real_keys": source.real_keys,
                "key_size": source.projection.size,
                "rank": RANK,
                "spread": SPREAD,
                "queries": len(source.queries),
                "projected_per_second": rate,
                "sizes": found,
            }
            save("retrieval", payload, results, lambda payload=payload: figure(payload))  # type: ignore[misc]


@dataclass
class Source:
    """Where keys and queries come from."""

    projection: Projection
    real: Callable[[], Iterator[Tensor]]
    """The real states, chunk by chunk, made anew."""
    queries: Tensor
    """Keys of states that are not in any store [Q, P]."""
    real_keys: int = 0
    """Real states among the keys."""

    @classmethod
    def load(cls, num_queries: int) -> Source:
        """The run in this folder."""
        pair = load_pair(read_params())
        store = store_for(pair.target)
        layer = store.config.layer
        texts = [text for text in training_texts() if text.answer]
        asked = torch.cat(list(states_of(pair.target, development_texts(num_queries), layer)))
        places = torch.linspace(0, len(asked) - 1, num_queries).long().unique()
        return cls(store.projection, lambda: states_of(pair.target, texts, layer), store.projection(asked[places]))

    def write(self, path: Path, num: int) -> tuple[Tensor, float]:
        """`num` keys in a file [num, P], float16, and how many were made per second."""
        started, place = process_time(), 0
        written = np.memmap(path, np.float16, "w+", shape=(num, self.projection.size))
        kept: list[Tensor] = []
        for states in self.real():
            states = states[: num - place]
            if sum(map(len, kept)) < CENTRES:
                kept.append(states)
            written[place : place + len(states)] = self.projection(states).half().numpy()
            place += len(states)
        self.real_keys = place
        for states in synthetic(torch.cat(kept), num - place):
            written[place : place + len(states)] = self.projection(states).half().numpy()
            place += len(states)
        return torch.from_numpy(written), num / (process_time() - started)


def development_texts(num_states: int) -> list[Text]:
    """Development prompts with their strict answers, as many as surely have so many states."""
    answers = {row["id"]: row["ids"] for row in read_json_lines(Path("data/reference/development.jsonl"))}
    prompts = read_json_lines(Path("data/prompts/development.jsonl"))
    texts = [Text(row["ids"], answers[row["id"]]) for row in prompts if answers[row["id"]]]
    return texts[: max(1, num_states // 4)]


def synthetic(centres: Tensor, num: int) -> Iterator[Tensor]:
    """`num` states near the centres, chunk by chunk [n, D]."""
    generator = torch.Generator().manual_seed(0)
    centred = centres - centres.mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred / max(1, len(centres) - 1))
    steps = SPREAD * variances[-RANK:].clamp_min(0).sqrt() * directions[:, -RANK:]
    for start in range(0, num, CHUNK):
        size = min(CHUNK, num - start)
        chosen = torch.randint(len(centres), (size,), generator=generator)
        yield centres[chosen] + torch.randn(size, steps.shape[1], generator=generator) @ steps.T


def measure(keys: Tensor, queries: Tensor, kinds: list[Any]) -> dict[str, Any]:
    """One size: the exact search, and every kind of index with its curve."""
    exact = ExactIndex(keys)
    truth = torch.cat([exact.search(part, NEIGHBOURS)[1] for part in queries.split(16)])
    found: dict[str, Any] = {"exact": {"bytes": 4 * exact.keys.numel(), "recall": 1.0, **timed(exact, queries)}}
    say(len(keys), "exact", found["exact"])
    del exact
    for kind in kinds:
        started = process_time()
        sample = keys[torch.linspace(0, len(keys) - 1, min(len(keys), sample_size(len(keys)))).long()]
        index = fill(new_index(kind, len(keys), keys.shape[1]), sample, keys.split(CHUNK))
        rate = len(keys) / (process_time() - started)
        curve = [
            {
                "effort": effort,
                "refine": refine,
                **quality(FaissIndex(index, keys, effort, refine), queries, truth),
            }
            for effort in EFFORTS[kind]
            for refine in (REFINES if kind == "ivf" else REFINES[1:2])
        ]
        size = import_faiss().serialize_index(index).nbytes
        found[kind] = {"keys_per_second": rate, "bytes": size + 2 * keys.numel(), "index_bytes": size, "curve": curve}
        for point in curve:
            say(len(keys), f"{kind} {point['effort']} x{point['refine']}", point)
    return found


def sample_size(num_keys: int) -> int:
    """Keys that an inverted file learns from; product quantisation asks for some hundred at least."""
    return max(10_000, POINTS_PER_LIST * num_lists(num_keys))


def quality(index: Index, queries: Tensor, truth: Tensor) -> dict[str, Any]:
    """Recall of the true neighbours, and times."""
    found = index.search(queries, NEIGHBOURS)[1]
    hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True))
    return {"recall": hits / truth.numel(), **timed(index, queries)}


def timed(index: Index, queries: Tensor) -> dict[str, float]:
    """Median processor milliseconds per query, one at a time and 16 at once, and the round that one is 5 % of.

    Seconds of this process with its threads, so that whoever else is at work on the machine counts for little.
    """
    times = {}
    for batch in (1, 16):
        parts = [part for part in queries.split(batch) if len(part) == batch] or [queries]
        seconds = []
        for part in parts[: max(4, 64 // batch)]:
            started = process_time()
            index.search(part, NEIGHBOURS)
            seconds.append((process_time() - started) / len(part))
        times[f"ms_batch_{batch}"] = 1000 * float(np.median(seconds))
    return {**times, "round_ms": times["ms_batch_1"] / SHARE}


def say(size: int, name: str, point: dict[str, Any]) -> None:
    """A line for the terminal."""
    print(f"{size:>9} {name:14} recall {point['recall']:.3f} {point['ms_batch_1']:8.3f} ms", flush=True)


def figure(payload: dict[str, Any]) -> Any:
    """Recall against milliseconds per query; the exact search of each size as a vertical line."""
    from matplotlib import pyplot as plt

    from pipeline.report.figures import STYLE

    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
        for place, (size, found) in enumerate(payload["sizes"].items()):
            axes.axvline(found["exact"]["ms_batch_1"], color=f"C{place}", lw=0.8, ls=":")
            for kind, marker in (("ivf", "o"), ("hnsw", "s")):
                curve = found.get(kind, {}).get("curve", [])
                points = [point for point in curve if point["refine"] == max(one["refine"] for one in curve)]
                if points:
                    axes.plot(
                        [point["ms_batch_1"] for point in points],
                        [point["recall"] for point in points],
                        color=f"C{place}",
                        marker=marker,
                        ms=4,
                        label=f"{int(size):,} keys, {kind}",
                    )
        axes.axhline(0.9, color="grey", lw=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("ms per query, batch 1 (dotted: exact)")
        axes.set_ylabel("recall@8")
        axes.legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    run(main, kept=False)
