"""A run becomes a forecast: its answer, what it is sensitive to, and which runs there are answers for."""
