"""The sentence behind a model that cannot be used: what was wrong, and what helps."""

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

from gistgate.core.utils import UserError
from gistgate.models.loading import check_smaller, hub_remedy, load_draft
from tests.tiny import tiny_pair


def caused(error):
    """The error as transformers raises it: an OSError of its own in front of the hub's."""
    outer = OSError("We have a problem.")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error, sentence",
    [
        (caused(GatedRepoError.__new__(GatedRepoError)), "accept it there, and log in with `hf auth login`"),
        (OSError("You are trying to access a gated repo."), "open https://huggingface.co/owner/name"),
        (caused(LocalEntryNotFoundError.__new__(LocalEntryNotFoundError)), "set HF_HUB_OFFLINE=0"),
        (OSError("We couldn't connect to 'https://huggingface.co'"), "Check the name and the connection"),
        (ValueError("odd"), "Check the name or the folder."),
    ],
)
def test_the_remedy_follows_the_cause(error, sentence):
    assert sentence in hub_remedy("owner/name", error)


def test_a_draft_larger_than_its_target_is_refused(tmp_path):
    target, draft = tiny_pair()
    check_smaller(target, draft)
    target.model.layers = target.model.layers[:1]
    with pytest.raises(UserError, match="Swap the two"):
        check_smaller(target, draft)
    draft.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="drafting would cost more than it saves"):
        load_draft(tmp_path, target)
