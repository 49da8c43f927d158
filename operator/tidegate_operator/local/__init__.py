"""The local plan realised: supervised processes on loopback, and the state folder that other terminals read.

Linux only: processes are tied to their supervisor by the kernel, and told apart by their start times.
"""
