"""Tensor2Robot's `tensorspec_utils`, by the same names; see `t2r_seq.specs`.

Differences:

- `write_input_spec_to_file`, `load_input_spec_from_file`, `write_global_step_to_file`
  and `load_global_step_from_file`, which used pickle, are gone. `create_t2r_assets`
  takes specs and the global step, and `write_t2r_assets_to_file` writes them as text.
- `make_placeholders` returns `tf.keras.Input`s outside of a `tf.Graph`.
- `make_random_numpy` and `make_constant_numpy` take None for no batch axis;
  `make_random_tensors` makes the time axis of sequences, too.
"""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from t2r_seq.records.features import tensorspec_to_feature_dict
from t2r_seq.specs import (
  ExtendedTensorSpec,
  TensorSpecStruct,
  add_sequence_length_specs,
  copy_tensorspec,
  flatten_spec_structure,
  is_encoded_image_spec,
  make_placeholders,
  make_random_numpy,
  pack_flat_sequence_to_spec_structure,
  validate_and_flatten,
  validate_and_pack,
)
from t2r_seq.specs.assets import (
  EXTRA_ASSETS_DIRECTORY,
  T2R_ASSETS_FILENAME,
  create_t2r_assets,
  load_t2r_assets_to_file,
  write_t2r_assets_to_file,
)
from t2r_seq.specs.samples import (
  make_constant_numpy,
  make_random_tensors,
  map_feed_dict,
  map_feed_dict_unsafe,
  map_predict_fn_dict,
)
from t2r_seq.specs.structures import (
  assert_valid_spec_structure,
  cast_bfloat16_to_float32,
  cast_float32_to_bfloat16,
  filter_required_flat_tensor_spec,
  filter_spec_structure_by_dataset,
  is_flat_spec_or_tensors_structure,
  pad_or_clip_tensor_to_spec_shape,
  replace_dtype,
  tensorspec_from_tensors,
)
from t2r_seq.specs.validation import (
  assert_equal,
  assert_equal_spec_or_tensor,
  assert_required,
  maybe_ignore_batch,
)

__all__ = [
  "EXTRA_ASSETS_DIRECTORY",
  "T2R_ASSETS_FILENAME",
  "TSPEC",
  "ExtendedTensorSpec",
  "TensorSpecStruct",
  "add_sequence_length_specs",
  "assert_equal",
  "assert_equal_spec_or_tensor",
  "assert_required",
  "assert_valid_spec_structure",
  "cast_bfloat16_to_float32",
  "cast_float32_to_bfloat16",
  "convert_to_tensorspecstruct",
  "copy_tensorspec",
  "create_t2r_assets",
  "filter_required_flat_tensor_spec",
  "filter_spec_structure_by_dataset",
  "flatten_spec_structure",
  "is_encoded_image_spec",
  "is_flat_spec_or_tensors_structure",
  "load_t2r_assets_to_file",
  "make_constant_numpy",
  "make_placeholders",
  "make_random_numpy",
  "make_random_tensors",
  "map_feed_dict",
  "map_feed_dict_unsafe",
  "map_predict_fn_dict",
  "maybe_ignore_batch",
  "nest",
  "pack_flat_sequence_to_spec_structure",
  "pad_or_clip_tensor_to_spec_shape",
  "replace_dtype",
  "tensorspec_from_tensors",
  "tensorspec_to_feature_dict",
  "validate_and_flatten",
  "validate_and_pack",
  "write_t2r_assets_to_file",
]

nest = tf.nest
TSPEC = tf.TensorSpec


@gin.configurable
def convert_to_tensorspecstruct(inputs: Any) -> TensorSpecStruct:
  """Makes a TensorSpecStruct of a mapping or of (path, value) pairs."""
  return TensorSpecStruct(inputs)
