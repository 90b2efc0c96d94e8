"""`python3 -m microbench`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python runs this line, and no other file of the package
    print(f"microbench: Python {sys.version.split()[0]} is too old: expected 3.11 or later", file=sys.stderr)
    sys.exit(2)

from microbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
