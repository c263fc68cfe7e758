"""SRL: reinforcement learning as a declared dataflow graph of worker processes."""

__version__ = "0.1.0"
