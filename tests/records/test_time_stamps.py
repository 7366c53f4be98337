"""Time stamps within a record must not run backwards: doctor looks at them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records
from t2r_seq.specs import ExtendedTensorSpec as Spec


def examine(path, name, times, dtype=tf.float32, shape=(), **options):
  spec = {"t": Spec(shape, dtype, name, is_sequence=True)}
  rows = np.reshape(np.asarray(times, dtype.as_numpy_dtype), (len(times), *shape))
  records.write_records(path, spec, [{"t": np.sort(rows, 0)}, {"t": rows}])
  return records.examine_records(path, **options).problems


BACK = [0, 1, 1, 3, 2]
# name: (feature, times, options of the feature and the look, what is told; '' for good)
CASES = {
  "timestamp": ("timestamp", BACK, {}, "got 2.0 at step 4, after 3.0"),
  "time": ("time", BACK, {}, "got 2.0 at step 4, after 3.0"),
  "below a branch": ("obs/robot_timestamp_ns", BACK, {}, "got 2.0 at step 4"),
  "integers": ("time_ms", BACK, {"dtype": tf.int64}, "got 2 at step 4, after 3"),
  "a column of one": ("timestamps", BACK, {"shape": (1,)}, "got 2.0 at step 4"),
  "named": ("clock", BACK, {"time_keys": ["clock"]}, "got 2.0 at step 4, after 3.0"),
  "not named": ("clock", BACK, {}, ""),
  "another word": ("reaction_time", BACK, {}, ""),
  "as they should be": ("timestamp", [0, 1, 1, 2], {}, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_times(name, tmp_path):
  feature, times, options, want = CASES[name]
  found = examine(str(tmp_path / "r"), feature, times, **options)
  assert [(p.record, p.kind) for p in found] == ([(1, "times")] if want else [])
  for problem in found:
    assert "expected time stamps that do not run backwards" in str(problem)
    assert want in str(problem)


def test_raw_ones(tmp_path):
  """Doubles are bytes in a record, and need specs to be read."""
  path = str(tmp_path / "r")
  spec = {"time": Spec((), tf.float64, "time", is_sequence=True)}
  records.write_records(path, spec, [{"time": np.asarray([1.0, 0.5])}])
  (problem,) = records.examine_records(path, spec).problems
  assert "got 0.5 at step 1, after 1.0" in str(problem)


def test_a_name_that_is_not_there(tmp_path):
  want = "time_keys: expected features of the records, got \\[clok\\]. Did you mean"
  with pytest.raises(errors.SpecError, match=want):
    examine(str(tmp_path / "r"), "clock", BACK, time_keys=["clok"])
