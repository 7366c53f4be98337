"""Masks of optional features: declared in the specs, made by input generators."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, preprocessors, records, specs
from t2r_seq.data import input_generator as presence
from t2r_seq.data.input_generator import add_presence_specs


def structure(kit):
  return specs.TensorSpecStruct(
    {
      "x": kit.spec((), tf.int64, "x"),
      "extra": kit.spec((2,), tf.float32, "e", is_optional=True),
      "stack": kit.spec(
        (2, 1), tf.float32, "s", time_offsets=(-1, 0), is_optional=True
      ),
    }
  )


def test_masks_are_declared_for_optional_paths(kit):
  masked = add_presence_specs(structure(kit))
  want = {"extra_mask": (), "stack_mask": (2,)}
  assert {path: tuple(masked[path].shape) for path in want} == want
  assert all(masked[path].dtype == tf.bool for path in want)
  assert all(masked[path].is_optional for path in want)
  # The mask of a stack is one of windows, and not made here.
  assert presence.presence_masks(masked) == {"extra_mask": "extra"}
  assert set(add_presence_specs(masked)) == set(masked)
  one = add_presence_specs(structure(kit), ["extra"])
  assert set(one) == {"x", "extra", "extra_mask", "stack"}


def test_mask_of_what_is_always_there_is_refused(kit):
  want = r"x: expected an optional spec\..*There is \[extra, stack\]"
  with pytest.raises(errors.SpecError, match=want):
    add_presence_specs(structure(kit), ["x"])


@pytest.mark.parametrize("has_extra", [True, False])
def test_generators_deliver_the_masks_that_are_declared(kit, tmp_path, has_extra):
  path = tmp_path / "a.tfrecord"
  flat = {p: spec for p, spec in structure(kit).items() if p != "stack"}
  row = {"x": np.int64(1), "extra": np.ones(2, np.float32)}
  if not has_extra:
    del row["extra"]
  records.write_records(path, flat, [row, row])
  generator = data.DefaultRecordInputGenerator(str(path), batch_size=2)
  model = kit.FakeModel(
    lambda mode: add_presence_specs(flat),
    lambda mode: {},
    preprocessor_cls=preprocessors.NoOpPreprocessor,
  )
  generator.set_specification_from_model(model, "eval")
  ((features, _),) = generator.create_dataset("eval")
  if has_extra:
    assert features["extra_mask"].numpy().tolist() == [True, True]
  else:
    assert set(features) == {"x"}
