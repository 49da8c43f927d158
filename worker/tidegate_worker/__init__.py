"""A worker: our engine behind an OpenAI HTTP server and a Telemetry stream.

engine/   torch-free: sequences, block pool, prefix cache, scheduler; the engine process and its client
model/    architectures, loading (safetensors, GGUF), tokenizer and chat template
kernels/  attention as functions of tensors
runner/   turns a scheduled batch into sampled tokens
server/   OpenAI HTTP, telemetry gRPC, metrics
sim/      a runner and tokenizer without a model, for tests and benchmarks
"""
