"""Files and words as they come in: text, YAML, archives, units, command lines. Outputs that destroy nothing, the
terminal, and how a command ends."""
