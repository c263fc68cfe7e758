"""Versions of weights in a shared, torn-read-safe buffer."""
