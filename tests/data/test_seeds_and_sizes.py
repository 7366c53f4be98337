"""Numbers that would do something else than they say are refused at construction."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.data import plan
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.windows.reader import WindowReader


def test_batch_takes_no_more_room_than_there_are_windows():
  order = plan.WindowOrder(12, plan.Plan(10**7, "sequential", drop_remainder=False))
  assert order.window_ids(tf.constant(0, tf.int64)).numpy().tolist() == [*range(12)]


def test_float_image_over_integers_names_the_preprocessor():
  element = {"image": tf.TensorSpec([None, 4, 4, 3], tf.uint8)}
  wanted = {"image": specs.ExtendedTensorSpec((4, 4, 3), tf.float32, time_offsets=0)}
  hint = "got (None, 4, 4, 3) uint8. Declare uint8, and convert it: "
  with pytest.raises(errors.SpecError, match=re.escape(hint)):
    WindowReader(element, wanted)


def test_pattern_beside_its_shards_names_them(tmp_path):
  spec = {"x": specs.ExtendedTensorSpec((), tf.int64, "x")}
  path = str(tmp_path / "tr.tfrecord")
  records.write_records(str(tmp_path / "tr-00000-of-00001.tfrecord"), spec, [{"x": 1}])
  want = f"There are its shards, such as tr-00000-of-00001.tfrecord: '{path[:-9]}-*"
  for pattern in (path, f"{path}*"):
    with pytest.raises(errors.SpecError, match=re.escape(want)):
      get_data_format_and_filenames(pattern)
