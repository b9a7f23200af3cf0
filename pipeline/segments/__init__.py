"""SemanticSpec in the pipeline: sample and group segments, train probes, list its methods."""
