"""Adapters for environment libraries, and environments of our own."""
