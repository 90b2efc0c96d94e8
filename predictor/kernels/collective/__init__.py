"""Collectives: equations, estimator, fit."""
