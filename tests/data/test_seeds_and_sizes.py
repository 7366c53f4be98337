"""Numbers that would do something else than they say are refused at construction."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs, windows
from t2r_seq.data import plan

GENERATORS = {
  "StoreInputGenerator": data.StoreInputGenerator,
  "DefaultRecordInputGenerator": data.DefaultRecordInputGenerator,
}
REFUSED = {
  "negative": (-1, "seed: expected an integer of at least 0, got -1."),
  "beyond 32 bits": (
    2**32,
    "seed: expected an integer below 4,294,967,296, got 4294967296.",
  ),
  "fraction": (1.5, "seed: expected an integer of at least 0, got 1.5."),
  "text": ("a", "seed: expected an integer of at least 0, got 'a'."),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("generator", GENERATORS)
def test_seeds_are_integers_of_32_bits(generator, name):
  seed, want = REFUSED[name]
  with pytest.raises(errors.SpecError, match=re.escape(f"{generator}: {want}")):
    GENERATORS[generator]("path", seed=seed)
  for good in (None, 0, 2**32 - 1, np.int64(7)):
    GENERATORS[generator]("path", seed=good)


def test_batches_that_no_machine_makes_are_refused():
  want = "DefaultRecordInputGenerator: batch_size: expected at most 16,777,216 examples"
  with pytest.raises(errors.SpecError, match=f"{want}, got 100,000,000"):
    data.DefaultRecordInputGenerator("path", 10**8)


def test_a_batch_takes_no_more_room_than_there_are_windows():
  order = plan.WindowOrder(12, plan.Plan(10**7, "sequential", drop_remainder=False))
  assert order.window_ids(tf.constant(0, tf.int64)).numpy().tolist() == [*range(12)]


def test_a_float_image_over_integers_says_what_to_do():
  element = {"image": tf.TensorSpec([None, 4, 4, 3], tf.uint8)}
  wanted = {"image": specs.ExtendedTensorSpec((4, 4, 3), tf.float32, time_offsets=0)}
  hint = "got (None, 4, 4, 3) uint8. Declare uint8, and convert it: "
  with pytest.raises(errors.SpecError, match=re.escape(hint)):
    windows.WindowReader(element, wanted)


def test_a_pattern_beside_its_shards_names_them(tmp_path):
  spec = {"x": specs.ExtendedTensorSpec((), tf.int64, "x")}
  path = str(tmp_path / "tr.tfrecord")
  records.write_records(str(tmp_path / "tr-00000-of-00001.tfrecord"), spec, [{"x": 1}])
  want = f"There are its shards, such as tr-00000-of-00001.tfrecord: '{path[:-9]}-*"
  for pattern in (path, f"{path}*"):
    with pytest.raises(errors.SpecError, match=re.escape(want)):
      records.get_data_format_and_filenames(pattern)
