"""Watching a decoder: traces of single answers, shadow runs, and timing side by side."""
