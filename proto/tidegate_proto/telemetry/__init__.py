"""The Telemetry service."""
