"""Metrics and access log."""
