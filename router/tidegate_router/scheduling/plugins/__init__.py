"""The built-in scheduling plugins, one a file."""
