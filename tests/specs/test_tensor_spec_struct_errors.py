"""What a TensorSpecStruct refuses, and what it says."""

from __future__ import annotations

import collections

import pytest
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

IMAGE = ExtendedTensorSpec((8, 8, 3), tf.uint8, "image", data_format="jpeg")
ACTION = ExtendedTensorSpec((2,), tf.float32, "action")
EXTRA = ExtendedTensorSpec((), tf.int64, "extra", is_optional=True)


def make():
  return TensorSpecStruct(
    [
      ("train/image", IMAGE),
      ("train/action", ACTION),
      ("test/image", IMAGE),
      ("test/action", ACTION),
      ("magic", EXTRA),
    ]
  )


PATHS = ["train/image", "train/action", "test/image", "test/action", "magic"]

EMPTY = {
  "struct": TensorSpecStruct(),
  "dict": {},
  "namedtuple": collections.namedtuple("Nothing", [])(),
  "nested": {"a": {"b": {}}},
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_structure_is_an_error_that_says_what_to_do(name):
  struct = make()
  match = r"TensorSpecStruct: new.*: expected entries, got an empty .*Fill it first"
  with pytest.raises(errors.SpecError, match=match):
    struct.new = EMPTY[name]
  assert list(struct) == PATHS


def test_a_failed_assignment_changes_nothing():
  struct = make()
  with pytest.raises(errors.SpecError, match="train/z: expected entries"):
    struct["train"] = {"image": EXTRA, "y": 1, "z": {}}
  assert struct.to_dict() == make().to_dict()


CLASHES = {
  "leaf over a branch": ("train", 1, "train: expected a new path, got 'train/image'"),
  "branch over a leaf": ("magic/a", 1, "magic/a: expected a new path, got 'magic'"),
  "mapping over a leaf": ("magic", {"a": 1}, "magic/a: .*delete one first"),
  "within the mapping": ("q", {"a": 1, "a/b": 2}, "q/a/b: .*got 'q/a' in its way"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_a_path_is_a_leaf_or_a_branch(name):
  key, value, match = CLASHES[name]
  struct = make()
  with pytest.raises(errors.SpecError, match=match):
    struct[key] = value
  assert list(struct) == PATHS


@pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", 3, None, ("a",)])
def test_bad_keys(key):
  with pytest.raises(errors.SpecError, match="expected a path of names joined by"):
    TensorSpecStruct()[key] = 1


@pytest.mark.parametrize("name", ["items", "copy", "to_json", "pop", "_private"])
def test_names_that_cannot_be_attributes(name):
  struct = TensorSpecStruct()
  with pytest.raises(errors.SpecError, match=rf"Use struct\['{name}'\] = "):
    setattr(struct, name, 1)
  struct[name] = 1
  assert struct[name] == 1
  assert list(struct.items()) == [(name, 1)]


def test_unknown_names():
  struct = make()
  match = "TensorSpecStruct: trian: no such path. Did you mean 'train'?"
  for error in (AttributeError, KeyError, errors.SpecError, ValueError):
    with pytest.raises(error, match=match):
      _ = struct.trian
    with pytest.raises(error, match=match):
      _ = struct["trian"]
  with pytest.raises(AttributeError, match=r"train/imag: .* Did you mean 'image'\?"):
    _ = struct.train.imag
  with pytest.raises(AttributeError, match=r"There is \[magic, test/action, test/im"):
    _ = struct.zzz
  with pytest.raises(KeyError, match=r"magicc: no such path. Did you mean 'magic'"):
    del struct["magicc"]
  with pytest.raises(AttributeError, match=r"train/actio: .*Did you mean 'action'"):
    del struct.train.actio


@pytest.mark.parametrize("items", [None, 0, False])
def test_what_is_no_mapping_is_no_empty_struct(items):
  with pytest.raises(TypeError, match="not iterable"):
    TensorSpecStruct(items)
