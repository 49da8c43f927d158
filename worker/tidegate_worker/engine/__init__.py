"""The torch-free engine: sequences, block pool, prefix cache, scheduler, and its process."""
