"""Files and words as they come in: text, YAML, archives, units, command lines; and outputs that destroy nothing."""
