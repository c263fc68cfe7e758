"""The workers: plain objects that do one bounded piece of work per poll."""
