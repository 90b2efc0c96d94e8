"""The GPUs and systems that a forecast can be asked for, one YAML file each."""
