"""The API: typed `InferencePool` and `RouterConfig`, how they are decoded with errors people can act on, their CRDs.

Every component may import this package; it imports none of them and does no I/O.
"""
