"""TensorFlow ops of the package; `load.ops()` is the module of their generated wrappers."""
