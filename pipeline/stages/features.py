"""Read what a gate head sees at every labelled mismatch; a changed feature repeats this stage and
no rollout: `python -m pipeline.stages.features pilot | strict | gated` writes data/features/<goal>.
The pilot has features of its own because the gated texts depend on it: it stays as it is when
`train.features` changes.
"""

from collections.abc import Callable

import torch

from gistgate.core.files import load_tensors
from gistgate.core.utils import UserError
from pipeline.labels import schema
from pipeline.labels.features import FeatureReader
from pipeline.pair.pair import load_pair, pair_files
from pipeline.params import Params, read_params
from pipeline.run import Shards, run, shard_files
from pipeline.task import read_prompts, request_of

GOALS = {"pilot": "strict", "strict": "strict", "gated": "gated"}
"""The pass whose labels each goal reads."""
OVERFLOW = (
    "States that are not finite come from weights that overflow: load the target in bfloat16 or"
    " float32."
)
"""What helps where this stage itself computes values that nobody can use."""


def main(goal: str) -> None:
    params = read_params()
    if goal not in GOALS:
        raise UserError(f"There is no goal '{goal}'. Use one of: {', '.join(GOALS)}.")
    labels = schema.LABEL_FOLDER / GOALS[goal]
    count = len(shard_files(labels))
    settings = (params.pair, params.decoding.deciding, features_of(params, goal))
    shards = Shards(f"features-{goal}", *settings, labels, *pair_files(params.pair))
    workers = params.decoding.workers
    if shards.fill(count, reading, (params, goal), workers, f"features, {goal}", {"goal": goal}):
        # A near tie may turn in another batch. Of large features only this column is read.
        column = "same_target"
        parts = [load_tensors(shards.path(index), [column])[column] for index in range(count)]
        same = torch.cat(parts)
        summary = {"rows": len(same), "rows_with_another_target_token": int((same == 0).sum())}
        shards.publish(count, schema.FEATURE_FOLDER / goal, summary)


def features_of(params: Params, goal: str) -> tuple[str, ...]:
    """Ids of the features to read; `scalars` are always among them, because training-free
    references need them.
    """
    train = params.train
    names = train.pilot_features if goal == "pilot" else train.all_features
    return tuple(dict.fromkeys((*names, "scalars")))


def reading(settings: tuple[Params, str]) -> Callable[[int], schema.Table]:
    """Reads the features of one shard after another."""
    params, goal = settings
    pair = load_pair(params)
    prompts = read_prompts("train")
    names = features_of(params, goal)
    reader = FeatureReader(pair, prompts, names, params.decoding.block)
    labels = schema.read_records(schema.LABEL_FOLDER / GOALS[goal], schema.LABELS)
    request = request_of(prompts, pair)
    columns = {**schema.FEATURES, **dict.fromkeys(names, schema.FEATURE)}

    def read(index: int) -> schema.Table:
        records, texts = labels[index]
        rows = {name: records[name] for name in (*schema.PLACE, "kept")}
        if "trial" in records:
            rows["trial"] = records["trial"]
        if not schema.num_rows(records):
            return {**rows, "kl": torch.zeros(0), "same_target": torch.zeros(0, dtype=torch.int8)}
        rows |= reader.read(records, texts, params.label.batch_size, **request)
        return schema.checked(rows, columns, f"Shard {index}", OVERFLOW)

    return read


if __name__ == "__main__":
    run(main)
