"""Passes over graphs, a file each: a graph comes in, another one goes out."""
