"""The verbs of `microbench`, one module each."""
