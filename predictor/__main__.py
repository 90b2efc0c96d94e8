"""`python -m predictor` is `tilecast`."""

from predictor.cli.main import main_tilecast

main_tilecast()
