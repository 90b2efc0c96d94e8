"""Convolutions: equations and estimator."""
