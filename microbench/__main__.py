"""`python3 -m microbench`."""

import sys

from microbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
