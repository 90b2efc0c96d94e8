"""Attention: equations and estimator."""
