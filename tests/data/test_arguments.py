"""What input generators refuse at construction, and which files they read."""

from __future__ import annotations

import pytest
import tensorflow as tf

from t2r_seq import data, errors


@pytest.mark.parametrize(
  ("argument", "bad", "minimum", "fine"),
  [
    ("shuffle_buffer_size", -1, 0, 0),
    ("shuffle_buffer_size", None, 0, 1),
    ("cycle_length", 0, 1, 1),
    ("cycle_length", 2.0, 1, 2),
  ],
)
def test_sizes_are_checked_at_construction(argument, bad, minimum, fine):
  want = f"Generator: {argument}: expected an integer of at least {minimum}, got {bad}"
  with pytest.raises(errors.SpecError, match=want):
    data.DefaultRecordInputGenerator("a", **{argument: bad})
  data.DefaultRecordInputGenerator("a", **{argument: fine})


@pytest.mark.parametrize(
  ("patterns", "want"),
  [
    (["a.tfrecord", "*.tfrecord"], [1, 2, 3, 4]),
    ("b*,*.tfrecord", [3, 4, 1, 2]),
    ("c[1],x", [5]),
    (["c[1],x", "a*"], [5, 1, 2]),
  ],
)
def test_each_file_is_read_once(tmp_path, monkeypatch, kit, patterns, want):
  monkeypatch.chdir(tmp_path)
  for name, values in (("a.tfrecord", [1, 2]), ("b.tfrecord", [3, 4]), ("c[1],x", [5])):
    kit.write_examples(name, values)
  model = kit.FakeModel(
    lambda mode: {"x": kit.spec((), tf.int64, "x")}, lambda mode: {}
  )
  generator = data.DefaultRecordInputGenerator(patterns)
  generator.set_specification_from_model(model, "eval")
  batches = generator.create_dataset("eval")
  assert [int(x) for features, _ in batches for x in features["x"]] == want
