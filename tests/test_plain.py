"""Which files of a folder that somebody else wrote are followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.core.files import inside
from gistgate.core.utils import UserError


@pytest.mark.parametrize(
    "place, followed",
    [(f"blobs/{'a1' * 20}", True), (f"blobs/{'a1' * 32}", True), (f"files/md5/0a/{'b' * 30}", True),
     ("blobs/secret", False), (f"elsewhere/{'a1' * 20}", False), (f"blobs/{'a1' * 20}.txt", False)],
)  # fmt: skip
def test_a_link_leads_out_of_a_folder_into_download_caches_alone(tmp_path: Path, place: str, followed: bool):
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("{}")
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate/config.json").symlink_to(tmp_path / place)
    if followed:
        assert inside(tmp_path / "gate", "config.json").read_text() == "{}"
    else:
        with pytest.raises(UserError, match="leads out of its folder"):
            inside(tmp_path / "gate", "config.json")
