"""Judges put samples into groups: by answers, or by texts."""

from pipeline.segments.judges import Sample, same_answer, same_text

SAMPLES = [Sample(text, f"#### {text[-2]}") for text in ("It is 3.", "it  is 3.", "So 3.", "So 4.")]


class SameLastSign:
    """A task whose answers agree when their last signs do; an empty text has none."""

    def same_meaning(self, doc, text, reference):
        return text[-1] == reference[-1] if reference else None


def test_texts_and_answers_make_their_own_groups():
    judge = same_answer(SameLastSign())
    assert same_text({}, SAMPLES) == [0, 0, 1, 2]
    assert judge({}, SAMPLES) == [0, 0, 0, 1]
    assert judge({}, [Sample("a", ""), Sample("b", ""), Sample("c", "3")]) == [0, 0, 1]
