"""Megatron-Core."""
