"""Forms of kernels that pay on a CPU."""
