"""What a run is going to decode, counted before it begins."""

from pipeline.plan import planned
from tests.pipeline.parameters import parameters

METHODS = {
    "exact": {"rule": "exact"},
    "control": {"rule": "exact", "batch_size": 8},
    "prob": {"rule": "prob", "knob": "r", "grid": [0.5, 0.4, 0.3]},
}


def test_every_answer_is_counted():
    params = parameters(
        methods=METHODS,
        prompts={"development": 10, "calibration": 100, "test": 20},
        calibrate={"settings": 0, "evaluations": 2},
        benchmark={"prompts": 5, "development": 1},
    )
    answers = planned(params)
    assert answers["reference"] == 110
    assert answers["calibrate"] == 100 + (100 + 2 * 10)  # the control, and one setting
    assert answers["evaluate"] == 4 * 20  # plain decoding, too
