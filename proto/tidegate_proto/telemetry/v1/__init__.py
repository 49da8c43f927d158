"""Version 1 of the Telemetry service; generated code."""
