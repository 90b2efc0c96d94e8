"""A page to play with, served on loopback (extra `ui`): the words of `predict` as fields, answers as one types."""
