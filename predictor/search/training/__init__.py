"""Which parallel plan trains a model fastest on so many GPUs: every legal one, those that fit, and the best of them."""
