"""Operators that memory bounds: equations, estimator, fit."""
