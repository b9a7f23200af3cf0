"""Segments: samples of both models, their groups by meaning, probes, and what accepting segments costs and saves."""
