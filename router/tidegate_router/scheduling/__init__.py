"""Filters, scorers and picker. Pure."""
