"""Pure: what a pool should look like, as desired objects or processes. No I/O, no clock, no randomness."""
