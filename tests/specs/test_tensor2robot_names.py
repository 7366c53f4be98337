"""Tensor2Robot's module names export what it did; its README's hierarchies hold."""

from __future__ import annotations

import collections
import re

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, tensorspec_utils, tfdata
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.specs.samples import make_constant_numpy

TENSORSPEC_UTILS = re.findall(
  r"\w+",
  """
      EXTRA_ASSETS_DIRECTORY T2R_ASSETS_FILENAME TSPEC nest ExtendedTensorSpec
    TensorSpecStruct convert_to_tensorspecstruct replace_dtype
    cast_float32_to_bfloat16   cast_bfloat16_to_float32 copy_tensorspec
    make_placeholders make_random_tensors   make_constant_numpy make_random_numpy
    map_feed_dict map_predict_fn_dict   map_feed_dict_unsafe tensorspec_from_tensors
    maybe_ignore_batch   assert_equal_spec_or_tensor assert_equal assert_required
    validate_and_flatten   validate_and_pack add_sequence_length_specs
    filter_spec_structure_by_dataset   flatten_spec_structure
    pack_flat_sequence_to_spec_structure   is_flat_spec_or_tensors_structure
    assert_valid_spec_structure   filter_required_flat_tensor_spec
    is_encoded_image_spec tensorspec_to_feature_dict
    pad_or_clip_tensor_to_spec_shape write_t2r_assets_to_file
    load_t2r_assets_to_file   write_input_spec_to_file load_input_spec_from_file
    write_global_step_to_file   load_global_step_from_file
  """,
)

TFDATA = re.findall(
  r"\w+",
  """
      DATA_FORMAT RECORD_READER SUPPORTED_PIXEL_ENCODINGS get_batch_size
    infer_data_format   get_data_format_and_filenames_list
    get_data_format_and_filenames   get_dataset_metadata parallel_read
    serialized_to_parsed create_parse_tf_example_fn   create_compress_fn
    create_decompress_fn default_input_fn_tmpl get_input_fn
  """,
)

ALL = [(tensorspec_utils, name) for name in TENSORSPEC_UTILS]
ALL += [(tfdata, name) for name in TFDATA]


@pytest.mark.parametrize(("module", "name"), ALL, ids=lambda value: str(value)[-30:])
def test_every_name_is_exported_or_explained(module, name):
  if name in module.__all__:
    assert hasattr(module, name)
  else:
    assert f"`{name}`" in module.__doc__


@pytest.mark.parametrize("module", [tensorspec_utils, tfdata])
def test_all_is_complete(module):
  public = {name for name in vars(module) if not name.startswith("_")}
  assert public - set(module.__all__) <= {"annotations", "Any", "gin", "tf"}
  assert set(module.__all__) <= public


def test_names_are_the_same_objects():
  assert tensorspec_utils.ExtendedTensorSpec is specs.ExtendedTensorSpec
  assert tensorspec_utils.TensorSpecStruct is specs.TensorSpecStruct
  assert tensorspec_utils.validate_and_pack is specs.validate_and_pack
  assert tensorspec_utils.nest is tf.nest
  assert tensorspec_utils.TSPEC is tf.TensorSpec
  assert issubclass(Spec, tensorspec_utils.TSPEC)
  assert tfdata.record_dataset is records.record_dataset


def test_supported_pixel_encodings_are_what_the_parser_takes():
  def parses(dtype):
    image = Spec((8, 8, 3), dtype, "i", data_format="png")
    try:
      tfdata.create_parse_tf_example_fn({"image": image})
    except errors.SpecError:
      return False
    return True

  dtypes = (tf.uint8, tf.uint16, tf.uint32, tf.int16, tf.float32)
  assert {d for d in dtypes if parses(d)} == set(tfdata.SUPPORTED_PIXEL_ENCODINGS)


def test_convert_to_tensorspecstruct_by_gin():
  gin.parse_config("convert_to_tensorspecstruct.inputs = {'a/b': 1, 'a/c': 2}")
  struct = tensorspec_utils.convert_to_tensorspecstruct()
  assert type(struct) is TensorSpecStruct
  assert struct.a.c == 2


@pytest.mark.parametrize("dtype", [tf.uint8, tf.float32])
def test_compress_and_decompress(dtype):
  image = Spec((8, 16, 3), dtype, "i", data_format="JPEG")
  structure = {"t": {"image": image}, "pose": Spec((2,), tf.float32, "p")}
  labels = {"goal": image}
  arrays = make_constant_numpy(structure, 0.5 if dtype == tf.float32 else 128, 5)
  goals = make_constant_numpy(labels, 1.0 if dtype == tf.float32 else 255, 5)
  dataset = tf.data.Dataset.from_tensors((arrays, goals))
  dataset = dataset.map(tfdata.create_compress_fn(structure, labels, quality=100))
  [(compressed, compressed_goals)] = dataset
  assert compressed.t.image.dtype == compressed_goals.goal.dtype == tf.string
  assert compressed.t.image.shape == (5,)
  dataset = dataset.map(tfdata.create_decompress_fn(structure, labels))
  tensorspec_utils.assert_equal(structure, dataset.element_spec[0], ignore_batch=True)
  [(features, goal)] = dataset
  tolerance = 0.01 if dtype == tf.float32 else 2
  np.testing.assert_allclose(features.t.image, arrays["t"]["image"], atol=tolerance)
  np.testing.assert_allclose(goal.goal, goals["goal"], atol=tolerance)
  np.testing.assert_array_equal(features.pose, arrays["pose"])


def make_simple():
  simple = TensorSpecStruct()
  simple["state"] = Spec(shape=(8, 128), dtype=tf.float32, name="s")
  simple["action"] = Spec(shape=(8), dtype=tf.float32, name="a")
  return simple


def make_hierarchical():
  """Three copies: two by copy_tensorspec, the last one path by path."""
  simple, hierarchical = make_simple(), TensorSpecStruct()
  hierarchical.train = tensorspec_utils.copy_tensorspec(simple, prefix="train")
  hierarchical.val = tensorspec_utils.copy_tensorspec(simple, prefix="val")
  for path, spec in simple.items():
    hierarchical["test/" + path] = Spec.from_spec(
      spec, name="something_random/" + spec.name
    )
  return hierarchical


ITEMS = [
  ("train/state", (8, 128), "train/s"),
  ("train/action", (8,), "train/a"),
  ("val/state", (8, 128), "val/s"),
  ("val/action", (8,), "val/a"),
  ("test/state", (8, 128), "something_random/s"),
  ("test/action", (8,), "something_random/a"),
]


def describe(struct):
  return [(path, tuple(spec.shape), spec.name) for path, spec in struct.items()]


def test_three_copies():
  hierarchical = make_hierarchical()
  assert describe(hierarchical) == ITEMS
  for branch in ("train", "val", "test"):
    assert list(hierarchical[branch].keys()) == ["state", "action"]
  assert hierarchical.train.state.name == "train/s"
  assert hierarchical.val.state.name == "val/s"
  assert hierarchical.test.state.name == "something_random/s"


def test_flattening_and_path_versus_name():
  flat = tensorspec_utils.flatten_spec_structure(make_hierarchical())
  assert describe(flat) == ITEMS
  # Below a branch the paths are shorter, the names are those of the whole hierarchy.
  assert describe(flat.train) == [
    ("state", (8, 128), "train/s"),
    ("action", (8,), "train/a"),
  ]


def test_namedtuples():
  hierarchy_type = collections.namedtuple("Hierarchy", ["train", "val"])
  sample_type = collections.namedtuple("Sample", ["state", "action"])

  def sample(prefix):
    return sample_type(
      state=Spec((8, 128), tf.float32, f"{prefix}/s"),
      action=Spec((8), tf.float32, f"{prefix}/a"),
    )

  hierarchy = hierarchy_type(train=sample("train"), val=sample("val"))
  flat = tensorspec_utils.flatten_spec_structure(hierarchy)
  assert describe(flat) == ITEMS[:4]
  with pytest.raises(AttributeError, match="can't set attribute"):
    hierarchy.train = None
  flat.train.state = Spec((1,), tf.float32)
  assert flat["train/state"].shape == (1,)
  assert hierarchy.train.state.shape == (8, 128)
