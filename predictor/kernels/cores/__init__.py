"""The formulas: seconds of an operator on a device by a few named constants, a file a kind of kernel."""
