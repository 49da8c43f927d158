"""How the router learns about endpoints."""
