from __future__ import annotations

import json

import pytest
import tensorflow as tf

from t2r_seq import data, errors
from t2r_seq.data.record_input_generator import MultiEvalInputGenerator


@pytest.fixture(name="eval_map")
def fixture_eval_map(tmp_path, kit):
  return {
    "seen": kit.write_examples(tmp_path / "a.tfrecord", [1, 2]),
    "unseen": [kit.write_examples(tmp_path / "b.tfrecord", [3])],
  }


def read(generator, kit):
  spec = {"x": kit.spec((), tf.int64, "x")}
  model = kit.FakeModel(lambda mode: spec, lambda mode: {})
  values = {}
  for name, own in generator.named_evals().items():
    own.set_specification_from_model(model, "eval")
    batches = own.create_dataset("eval")
    values[name] = [int(x) for features, _ in batches for x in features["x"]]
  return values


def test_every_eval_has_its_files(eval_map, kit):
  generator = data.MultiEvalRecordInputGenerator(eval_map, batch_size=1)
  assert read(generator, kit) == {"seen": [1, 2], "unseen": [3]}
  assert {own.batch_size for own in generator.named_evals().values()} == {1}


def test_one_eval_by_name(eval_map, kit):
  generator = data.MultiEvalRecordInputGenerator(eval_map, "unseen")
  assert read(generator, kit) == {"unseen": [3]}


def test_tensor2robots_environment_variable_names_one(eval_map, kit, monkeypatch):
  monkeypatch.setenv("TF_CONFIG", json.dumps({"multi_eval_name": "unseen"}))
  assert read(data.MultiEvalRecordInputGenerator(eval_map), kit) == {"unseen": [3]}
  generator = data.MultiEvalRecordInputGenerator(eval_map, "seen")
  assert read(generator, kit) == {"seen": [1, 2]}
  monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {}}))
  assert len(read(data.MultiEvalRecordInputGenerator(eval_map), kit)) == 2


def test_any_input_generators_can_be_evals(kit):
  evals = {"ones": data.DefaultConstantInputGenerator(1)}
  generator = MultiEvalInputGenerator(evals)
  assert generator.named_evals() == evals
  assert evals["ones"].named_evals() == {"": evals["ones"]}


REFUSED = {
  "none": ({}, None, "evals: expected at least one, got none"),
  "no generator": ({"a": 3}, None, "evals: a: expected an input generator, got int 3"),
  "a path": (
    {"a/b": data.DefaultConstantInputGenerator()},
    None,
    "expected a name that a folder can have, got 'a/b'",
  ),
  "no name": ({"": data.DefaultConstantInputGenerator()}, None, "a folder can have"),
  "another name": (
    {"seen": data.DefaultConstantInputGenerator()},
    "sene",
    r"eval_name: expected one of \[seen\], got 'sene'\. Did you mean 'seen'\?",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_checked(name):
  evals, eval_name, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    MultiEvalInputGenerator(evals, eval_name)


def test_all_at_once_is_not_one_dataset(eval_map, kit):
  generator = data.MultiEvalRecordInputGenerator(eval_map)
  generator.set_specification_from_model(kit.FakeModel(), "eval")
  with pytest.raises(errors.SpecError, match=r"one of its evaluations, \[seen, unsee"):
    generator.create_dataset("eval")
