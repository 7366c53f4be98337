"""Specs, spec structures, and their checks."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from t2r_seq import imports as _imports

if _TYPE_CHECKING:
  from t2r_seq.specs.conventions import Convention
  from t2r_seq.specs.converter import Converter
  from t2r_seq.specs.extended_tensor_spec import (
    ExtendedTensorSpec,
    is_encoded_image_spec,
  )
  from t2r_seq.specs.names import ModeKeys
  from t2r_seq.specs.samples import make_placeholders, make_random_numpy
  from t2r_seq.specs.seconds import Seconds
  from t2r_seq.specs.structures import (
    SpecStructure,
    TensorSpecStruct,
    add_sequence_length_specs,
    copy_tensorspec,
    flatten_spec_structure,
    map_leaves,
    pack_flat_sequence_to_spec_structure,
  )
  from t2r_seq.specs.validation import (
    validate_and_flatten,
    validate_and_pack,
  )

__all__ = [
  "Convention",
  "Converter",
  "ExtendedTensorSpec",
  "ModeKeys",
  "Seconds",
  "SpecStructure",
  "TensorSpecStruct",
  "add_sequence_length_specs",
  "copy_tensorspec",
  "flatten_spec_structure",
  "is_encoded_image_spec",
  "make_placeholders",
  "make_random_numpy",
  "map_leaves",
  "pack_flat_sequence_to_spec_structure",
  "validate_and_flatten",
  "validate_and_pack",
]

# Loaded on first use: what a store holds is read without TensorFlow.
__getattr__, __dir__ = _imports.exports(
  __name__,
  *("assets", "conventions", "names", "seconds"),
  *("converter", "extended_tensor_spec", "packing"),
  *("samples", "structures", "validation"),
)
