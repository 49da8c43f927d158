"""The worker's face: OpenAI HTTP, Telemetry gRPC, metrics."""
