"""What the fits of several kernel families share."""
