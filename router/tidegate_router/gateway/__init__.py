"""The HTTP front."""
