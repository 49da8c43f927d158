"""The simulated worker under the flags that a plan gives to a real one: `python -m sim_process`."""

import argparse
import sys

from tidegate_worker.sim.main import main

_REAL_ONLY = ("--model", "--dtype", "--threads", "--kv-memory-bytes")


def simulated_arguments(arguments: list[str]) -> list[str]:
    """The arguments without those that only a worker with a model has."""
    parser = argparse.ArgumentParser(add_help=False)
    for flag in _REAL_ONLY:
        parser.add_argument(flag)
    _, rest = parser.parse_known_args(arguments)
    return rest


if __name__ == "__main__":
    sys.exit(main(simulated_arguments(sys.argv[1:])))
