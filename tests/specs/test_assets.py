"""The asset file beside an export: text, atomic, one clear error."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

from t2r_seq import errors, tensorspec_utils
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.specs.assets import (
  create_t2r_assets,
  load_t2r_assets_to_file,
  write_t2r_assets_to_file,
)

STACK = Spec((2, 3), tf.float32, "s", time_offsets=(-1, 0))
LABEL = Spec((2,), tf.float32, "l", is_optional=True)


def test_names():
  assert tensorspec_utils.EXTRA_ASSETS_DIRECTORY == "assets.extra"
  assert tensorspec_utils.T2R_ASSETS_FILENAME == "t2r_assets.pbtxt"


@pytest.mark.parametrize("step", [0, 7, 2**31, 2**40, None])
def test_round_trip(tmp_path, step):
  assets = create_t2r_assets({"z": STACK, "a": [STACK]}, [LABEL], step)
  filename = tmp_path / "t2r_assets.pbtxt"
  write_t2r_assets_to_file(assets, str(filename))
  read = load_t2r_assets_to_file(filename)
  assert read == assets
  features = TensorSpecStruct.from_proto(read.feature_spec)
  assert list(features) == ["z", "a/0"]
  assert features.z.is_identical_to(STACK)
  assert TensorSpecStruct.from_proto(read.label_spec)["0"].is_identical_to(LABEL)
  assert read.HasField("global_step") is (step is not None)
  assert read.global_step == (step or 0)


def test_without_labels():
  assets = create_t2r_assets({"z": STACK})
  assert not assets.HasField("label_spec")
  assert not assets.HasField("global_step")
  with pytest.raises(errors.SpecError, match="a: expected a spec, got"):
    create_t2r_assets({"a": tf.zeros(2)})


def test_writing_is_atomic(tmp_path, monkeypatch):
  filename = tmp_path / "assets.pbtxt"
  write_t2r_assets_to_file(create_t2r_assets({"old": STACK}), filename)

  def fail(*args, **kwargs):
    raise OSError("the disk is gone")

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is gone"):
      write_t2r_assets_to_file(create_t2r_assets({"new": STACK}), filename)
  assert [path.name for path in tmp_path.iterdir()] == ["assets.pbtxt"]
  read = load_t2r_assets_to_file(filename)
  assert list(read.feature_spec.key_order) == ["old"]
  write_t2r_assets_to_file(create_t2r_assets({"new": STACK}), filename)
  read = load_t2r_assets_to_file(filename)
  assert list(read.feature_spec.key_order) == ["new"]
  assert [path.name for path in tmp_path.iterdir()] == ["assets.pbtxt"]


BAD_FILES = {
  "json": b'{"feature_spec": 1}',
  "binary": b"\xff\xfe\x00\x01",
  "unknown field": b"feature_spec { no_such_field: 1 }",
  "cut off": b'feature_spec { key_value { key: "a" ',
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_one_error(tmp_path, name):
  filename = tmp_path / "assets.pbtxt"
  filename.write_bytes(BAD_FILES[name])
  match = r"load_t2r_assets_to_file: .*assets.pbtxt: expected a text-format T2RAssets"
  with pytest.raises(errors.SpecError, match=match):
    load_t2r_assets_to_file(filename)


def test_no_file_and_a_folder(tmp_path):
  with pytest.raises(
    errors.SpecError, match=r"missing.pbtxt: expected .* no such file"
  ):
    load_t2r_assets_to_file(tmp_path / "missing.pbtxt")
  with pytest.raises(errors.SpecError, match="load_t2r_assets_to_file: "):
    load_t2r_assets_to_file(tmp_path)
