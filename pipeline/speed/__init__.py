"""Timing methods side by side."""
