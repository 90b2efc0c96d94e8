"""`python -m tilecast` is `tilecast`."""

import sys

from predictor.cli import main

sys.exit(main())
