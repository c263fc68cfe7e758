"""Experiment files that come with SRL, runnable by name: ``srl-run list`` shows them."""
