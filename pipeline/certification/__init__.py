"""Decoding settings for a certificate."""
