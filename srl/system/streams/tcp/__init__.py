"""The transport between hosts: raw frames over ZeroMQ with CURVE."""
