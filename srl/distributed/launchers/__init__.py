"""Launchers: how processes of workers come into being and how their ends become known."""
