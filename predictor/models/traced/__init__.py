"""Frontends: models that are no config.json -> recordings. torch, transformers and onnx load where they are needed."""
