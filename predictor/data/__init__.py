"""Measurements: their schema, data sets, checks of what is plausible, and importers."""
