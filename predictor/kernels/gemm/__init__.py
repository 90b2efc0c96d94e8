"""Products of the tensor cores: equations, estimator, explanation, tiles."""
