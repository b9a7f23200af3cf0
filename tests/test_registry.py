"""A registry imports what is asked for and helps with names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gistgate.core.utils import Registry, UserError, nearest
from gistgate.drafters import DRAFTERS
from gistgate.rules import RULES

THINGS: Registry[object] = Registry("thing", {"path": "pathlib:PurePath", "number": 7})


def test_texts_name_what_is_imported_on_first_use():
    from pathlib import PurePath

    assert THINGS["path"] is PurePath and THINGS["path"] is THINGS["path"] and THINGS["number"] == 7
    assert list(THINGS) == ["path", "number"] and len(THINGS) == 2 and THINGS.get("other") is None


def test_an_unknown_id_is_answered_with_the_nearest_one():
    with pytest.raises(UserError) as error:
        _ = THINGS["numbr"]
    assert str(error.value) == "There is no thing 'numbr'. Did you mean 'number'?"
    with pytest.raises(KeyError, match="Known: number, path"):
        _ = THINGS["zzz"]
    assert nearest("zzz", []) == "Known: none."


@pytest.mark.parametrize("registry", [RULES, DRAFTERS], ids=["rules", "drafters"])
def test_every_entry_can_be_imported(registry: Registry[type]):
    assert all(isinstance(registry[name], type) for name in registry)


def test_naming_rules_and_drafters_imports_none_of_them():
    code = "import sys, gistgate.rules, gistgate.drafters; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "gistgate.rules" in loaded
    assert not {"gistgate.rules.divergence", "gistgate.core.guards"} & set(loaded)
