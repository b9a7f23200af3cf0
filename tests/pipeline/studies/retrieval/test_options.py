"""Lists on the command line are checked before the run in this folder is read."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.workload import Workload
from gistgate.errors import UserError
from pipeline.studies.retrieval import bench_choice, bench_drafters, bench_search


@pytest.mark.parametrize(
    ("main", "options", "said"),
    [
        (bench_choice.main, {"priors": "0.5,x"}, "'x' in --priors is no positive number"),
        (bench_choice.main, {"weights": "4,-1"}, "'-1' in --weights is no positive number"),
        (bench_drafters.main, {"sizes": "10,all"}, "'all' in --sizes is no positive whole number"),
        (bench_search.main, {"keys": "1e5"}, "'1e5' in --keys is no positive whole number"),
        (bench_search.main, {"keys": "100, 4"}, "--keys 100, 4: a size is 8 or more"),
        (bench_search.main, {"kinds": "ivf,hnws"}, "'hnws' is no kind of index. Did you mean 'hnsw'"),
    ],
)
def test_a_wrong_entry_is_named(main: Any, options: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Workload, "load", lambda *_, **__: pytest.fail("the run was read"))
    monkeypatch.setattr(bench_search.Source, "load", lambda *_: pytest.fail("the run was read"))
    with pytest.raises(UserError, match=said):
        main(**options)
