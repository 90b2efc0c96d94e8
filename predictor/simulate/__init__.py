"""A run in time: its plan, the times of that, the timeline, memory, and how sure all of it is."""
