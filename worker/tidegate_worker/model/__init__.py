"""Model architectures and how they are loaded: GGUF, safetensors, tokenizer, chat template."""
