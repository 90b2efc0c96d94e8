"""Grouped products of experts: equations and estimator."""
