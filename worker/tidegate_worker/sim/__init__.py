"""A runner and tokenizer without a model, for tests and benchmarks."""
