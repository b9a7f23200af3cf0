"""Timing side by side, statistics, and the commands that look at a pair before it is used."""
