"""Products of fp32 on CUDA cores: equations, estimator, fit."""
