"""Many forecasts from one file: its points, the workers that answer them, the parts that survive an interruption."""
