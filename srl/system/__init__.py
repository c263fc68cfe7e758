"""The runtime: workers, streams, parameter store, flow control, reports."""
