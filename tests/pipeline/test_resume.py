"""Finished shards survive an interruption, and only as long as nothing they depend on changes."""

from __future__ import annotations

import pytest
import torch
from pipeline.run.closure import ROOT

from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError
from pipeline.run import Shards, num_shards, read_shards, sources


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def produce(made, index, stop_at=None):
    """A producer of one shard that notes its call, and is killed at `stop_at`."""

    def make():
        if index == stop_at:
            raise KeyboardInterrupt
        made.append(index)
        return {"x": torch.tensor([index])}

    return make


def start(made, settings, stop_at=None):
    shards = Shards("collect", settings)
    for index in range(3):
        shards.make(index, produce(made, index, stop_at), {})
    shards.publish(3, shards.folder.parent.parent / "out")


def test_a_killed_start_loses_only_the_shard_it_was_making(folder):
    made = []
    with pytest.raises(KeyboardInterrupt):
        start(made, {"block": 8}, stop_at=2)
    assert made == [0, 1] and not (folder / "out").exists()
    start(made, {"block": 8})
    assert made == [0, 1, 2]
    assert [int(table["x"]) for table in read_shards(folder / "out")] == [0, 1, 2]


def test_other_settings_find_no_old_shards(folder):
    made = []
    with pytest.raises(KeyboardInterrupt):
        start(made, {"block": 8}, stop_at=2)
    start(made, {"block": 4})
    assert made == [0, 1, 0, 1, 2]


def test_publishing_replaces_the_old_whole_and_leaves_no_scratch(folder):
    start([], 1)
    start([], 2)
    assert num_shards(folder / "out") == 3
    assert list((folder / ".scratch").iterdir()) == []


def test_a_fingerprint_sees_contents_and_names_of_files(folder):
    (folder / "a").mkdir()
    (folder / "a/one").write_text("1")
    before = fingerprint(folder / "a")
    (folder / "a/one").write_text("2")
    changed = fingerprint(folder / "a")
    (folder / "a/one").rename(folder / "a/two")
    assert len({before, changed, fingerprint(folder / "a")}) == 3


def test_sources_are_all_that_a_module_runs_and_all_modules_of_a_package():
    names = [path.relative_to(ROOT).as_posix() for path in sources("pipeline.run", "gistgate.rules")]
    assert {"pipeline/common/resume.py", "gistgate/files.py", "gistgate/rules/fly.py"} <= set(names)
    assert "pipeline/common/pool.py" not in names


def test_a_folder_without_shards_is_refused(folder):
    with pytest.raises(UserError, match="dvc repro"):
        num_shards(folder)


def test_a_summary_is_there_with_the_shards_or_not_at_all(folder, monkeypatch):
    shards = Shards("collect", 1)
    shards.make(0, produce([], 0), {})
    shards.publish(1, folder / "out", {"rows": 1})
    assert {path.name for path in (folder / "out").iterdir()} == {"rows-00000.safetensors", "summary.json"}
    shards.make(0, produce([], 0), {})
    with pytest.raises(ValueError, match="Out of range float"):
        shards.publish(1, folder / "other", {"rows": float("nan")})
    assert shards.path(0).exists() and not (folder / "other").exists()
