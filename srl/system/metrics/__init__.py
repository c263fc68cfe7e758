"""What workers report, added up: the monitor, JSON-safe values, and the sinks that write curves."""
