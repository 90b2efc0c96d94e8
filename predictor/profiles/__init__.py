"""A profiler's trace of a job: what ran, how long, and what that says of other GPUs (docs/how-to/traces.md)."""
