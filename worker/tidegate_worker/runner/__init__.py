"""Turns a scheduled batch into sampled tokens."""
