"""Bundled experiment files, runnable by name."""
