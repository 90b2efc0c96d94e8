"""`python -m predictor` is `tilecast`."""

import sys

from predictor.cli.main import main

sys.exit(main())
