"""The operator: an `InferencePool` becomes running workers and a router."""
