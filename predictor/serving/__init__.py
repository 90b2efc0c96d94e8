"""Requests under load: traffic, the steps that an engine's scheduler makes of it, and what each takes."""
