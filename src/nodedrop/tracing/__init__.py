"""Module and example in, immutable Graph of ATen operators out."""

from .export import split_inputs, trace
from .graph import Graph, Mode, Node, Program, Ref, canonical_names, tensors_of

__all__ = ["Graph", "Mode", "Node", "Program", "Ref", "canonical_names", "split_inputs", "tensors_of", "trace"]
