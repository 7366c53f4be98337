"""What data looks like: specs, spec structures, and checks. Knows no file."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from t2r_seq import deferred as _deferred

if _TYPE_CHECKING:
  from t2r_seq.specs.assets import (
    EXTRA_ASSETS_DIRECTORY,
    T2R_ASSETS_FILENAME,
    create_t2r_assets,
    load_t2r_assets_to_file,
    write_t2r_assets_to_file,
  )
  from t2r_seq.specs.extended_tensor_spec import (
    ExtendedTensorSpec,
    frame_spec,
    is_encoded_image_spec,
    is_video_spec,
  )
  from t2r_seq.specs.names import VIDEO_FORMATS, ModeKeys
  from t2r_seq.specs.samples import (
    make_constant_numpy,
    make_placeholders,
    make_random_numpy,
    make_random_tensors,
    map_feed_dict,
    map_feed_dict_unsafe,
    map_predict_fn_dict,
  )
  from t2r_seq.specs.structures import (
    SpecStructure,
    TensorSpecStruct,
    add_sequence_length_specs,
    assert_valid_spec_structure,
    cast_bfloat16_to_float32,
    cast_float32_to_bfloat16,
    copy_tensorspec,
    filter_required_flat_tensor_spec,
    filter_spec_structure_by_dataset,
    flatten_spec_structure,
    is_flat_spec_or_tensors_structure,
    map_leaves,
    pack_flat_sequence_to_spec_structure,
    pad_or_clip_tensor_to_spec_shape,
    replace_dtype,
    signature_key,
    stored_specs,
    tensorspec_from_tensors,
  )
  from t2r_seq.specs.validation import (
    assert_equal,
    assert_equal_spec_or_tensor,
    assert_required,
    maybe_ignore_batch,
    validate_and_flatten,
    validate_and_pack,
  )

__all__ = [
  "EXTRA_ASSETS_DIRECTORY",
  "T2R_ASSETS_FILENAME",
  "VIDEO_FORMATS",
  "ExtendedTensorSpec",
  "ModeKeys",
  "SpecStructure",
  "TensorSpecStruct",
  "add_sequence_length_specs",
  "assert_equal",
  "assert_equal_spec_or_tensor",
  "assert_required",
  "assert_valid_spec_structure",
  "cast_bfloat16_to_float32",
  "cast_float32_to_bfloat16",
  "copy_tensorspec",
  "create_t2r_assets",
  "filter_required_flat_tensor_spec",
  "filter_spec_structure_by_dataset",
  "flatten_spec_structure",
  "frame_spec",
  "is_encoded_image_spec",
  "is_flat_spec_or_tensors_structure",
  "is_video_spec",
  "load_t2r_assets_to_file",
  "make_constant_numpy",
  "make_placeholders",
  "make_random_numpy",
  "make_random_tensors",
  "map_feed_dict",
  "map_feed_dict_unsafe",
  "map_leaves",
  "map_predict_fn_dict",
  "maybe_ignore_batch",
  "pack_flat_sequence_to_spec_structure",
  "pad_or_clip_tensor_to_spec_shape",
  "replace_dtype",
  "signature_key",
  "stored_specs",
  "tensorspec_from_tensors",
  "validate_and_flatten",
  "validate_and_pack",
  "write_t2r_assets_to_file",
]

# Loaded on first use: what a store holds is read without TensorFlow.
__getattr__, __dir__ = _deferred.exports(
  __name__,
  *("assets", "extended_tensor_spec", "names", "packing", "samples", "structures"),
  "validation",
)
