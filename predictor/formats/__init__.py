"""Number formats: data types, quantization schemes, and the parts of a model that have a format of their own."""
