"""Measurements of speed that are run by hand; results lie in benchmarks/results."""
