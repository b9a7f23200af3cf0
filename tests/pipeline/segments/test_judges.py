"""Judges put samples into groups: by answers, or by texts."""

from pipeline.segments.judges import Sample, groups_of

SAMPLES = [Sample(text, f"#### {text[-2]}") for text in ("It is 3.", "it  is 3.", "So 3.", "So 4.")]


class SameLastSign:
    """A task whose answers agree when their last signs do; an empty text has none."""

    def same_meaning(self, doc, text, reference):
        return text[-1] == reference[-1] if reference else None


def test_texts_and_answers_make_their_own_groups():
    groups = groups_of(SameLastSign(), {}, SAMPLES)
    assert groups == {"answer": [0, 0, 0, 1], "exact": [0, 0, 1, 2]}
    without = [Sample("a", ""), Sample("b", ""), Sample("c", "3")]
    assert groups_of(SameLastSign(), {}, without)["answer"] == [0, 0, 1]
