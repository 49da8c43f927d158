"""Connections to workers: pools, attempts, relay."""
