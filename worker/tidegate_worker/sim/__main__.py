"""`python -m tidegate_worker.sim`."""

import sys

from tidegate_worker.sim.main import main

if __name__ == "__main__":
    sys.exit(main())
