"""Quantization and linear attention, which run block by block: equations, estimator, fit."""
