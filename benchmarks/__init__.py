"""Measurements of speed and memory that are run by hand; results lie in benchmarks/results."""
