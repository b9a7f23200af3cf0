"""A project of one's own: the files that `gistgate init` writes, in which `dvc repro` runs the pipeline."""
