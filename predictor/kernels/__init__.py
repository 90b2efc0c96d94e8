"""Tilecast."""
