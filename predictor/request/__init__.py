"""Words become one checked run: model, GPU, workload, parallelism and number formats."""
