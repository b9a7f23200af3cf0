"""One module for each stage of dvc.yaml, run as `python -m pipeline.stages.<name>`."""
