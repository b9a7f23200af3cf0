"""Certificates for any engine: two OpenAI-compatible servers are compared from outside, on a task of the user."""
