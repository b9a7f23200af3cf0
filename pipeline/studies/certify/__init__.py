"""Certificates for small budgets, from thousands of prompts."""
