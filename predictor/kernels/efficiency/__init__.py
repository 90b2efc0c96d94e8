"""A family with few rows: an efficiency and an overhead."""
