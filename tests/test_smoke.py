"""Every stage of the graph on tiny sizes, twice: the second time nothing may run."""

import pytest

from pipeline import smoke


@pytest.mark.long
def test_every_stage_runs_once():
    smoke.main()
