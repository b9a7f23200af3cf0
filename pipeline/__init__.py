"""The DVC pipeline: `stages` holds a module for most stages of dvc.yaml, other folders what these
do. The environment is set here because torch, transformers and huggingface_hub read it on import,
and this package is imported first.
"""

import os

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    # Threads of a team wait for a fraction of a millisecond before they sleep. Without the wait
    # each of the hundreds of small products of a step pays tens of microseconds to wake them up;
    # with a long one, processes that share cores take them from each other (docs/speed.md).
    "GOMP_SPINCOUNT": "10000",
    "PYTHONHASHSEED": "0",
}
"""Defaults; a variable that is already set wins, so HF_HUB_OFFLINE=0 lets a real pair be
fetched.
"""

for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
