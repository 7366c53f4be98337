"""What input generators refuse at construction, and which files they read."""

from __future__ import annotations

import pathlib
import re

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs
from t2r_seq.data.record_input_generator import MultiEvalInputGenerator

RECORD_GENERATORS = {
  "DefaultRecordInputGenerator": data.DefaultRecordInputGenerator,
  "FractionalRecordInputGenerator": lambda patterns: (
    data.FractionalRecordInputGenerator(1.0, file_patterns=patterns)
  ),
  "RldsInputGenerator": data.RldsInputGenerator,
  "WeightedRecordInputGenerator": data.WeightedRecordInputGenerator,
}
NO_PATTERNS = {
  "None": (None, ": expected a pattern, a comma-separated string or a list of them"),
  "5": (5, ": expected a pattern, a comma-separated string or a list of them"),
  "b'x'": (b"x", ": expected a pattern, a comma-separated string or a list of them"),
  "''": ("", ": expected at least one pattern"),
  "' , '": (" , ", ": expected at least one pattern"),
  "[]": ([], ": expected at least one pattern"),
  "['', ' ']": (["", " "], ": expected at least one pattern"),
  "5 ": ([5], "[0]: expected a pattern or a path"),
  "b'x' ": (["a", b"x"], "[1]: expected a pattern or a path"),
}


@pytest.mark.parametrize("got", NO_PATTERNS)
@pytest.mark.parametrize("generator", RECORD_GENERATORS)
def test_generators_reject_invalid_file_patterns(generator, got):
  patterns, expected = NO_PATTERNS[got]
  want = (
    f"{generator}: file_patterns{expected}, got {got.strip()}. "
    "Name the files, such as 'data/train*.tfrecord'."
  )
  with pytest.raises(errors.SpecError, match=f"^{re.escape(want)}"):
    RECORD_GENERATORS[generator](patterns)


@pytest.mark.parametrize("got", NO_PATTERNS)
def test_maps_of_file_patterns_name_the_invalid_one(got):
  patterns, expected = NO_PATTERNS[got]
  want = f"RecordInputGenerator: eval_map['seen']{expected}, got {got.strip()}. Name"
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    data.MultiEvalRecordInputGenerator({"unseen": "a", "seen": patterns})
  want = f"RecordInputGenerator: file_patterns['b']{expected}, got {got.strip()}. Name"
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    data.DefaultRecordInputGenerator({"a": "x", "b": patterns})


NO_MAPS = {
  "no datasets": (
    lambda: data.DefaultRecordInputGenerator({}),
    "DefaultRecordInputGenerator: file_patterns: expected file patterns by "
    "dataset_key, got {}.",
  ),
  "weights as patterns": (
    lambda: data.WeightedRecordInputGenerator({"a": 1}),
    "WeightedRecordInputGenerator: file_patterns: expected a pattern, a "
    "comma-separated string or a list of them, got {'a': 1}.",
  ),
  "files without names": (
    lambda: data.MultiEvalRecordInputGenerator("a"),
    "MultiEvalRecordInputGenerator: eval_map: expected a map of names to file "
    "patterns, got 'a'.",
  ),
  "no evals": (
    lambda: MultiEvalInputGenerator(None),
    "MultiEvalInputGenerator: evals: expected a map of names to input generators, got "
    "None.",
  ),
}


@pytest.mark.parametrize("name", NO_MAPS)
def test_generators_reject_invalid_maps(name):
  make, want = NO_MAPS[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    make()


PATTERNS = {
  "string": "a*.tfrecord",
  "comma list": "a0.tfrecord, a1.tfrecord",
  "path": pathlib.Path("a*.tfrecord"),
  "paths": [pathlib.Path("a0.tfrecord"), pathlib.Path("a1.tfrecord")],
  "tuple": ("a0.tfrecord", "", "a1.tfrecord"),
  "array": np.array(["a0.tfrecord", "a1.tfrecord"]),
}


@pytest.mark.parametrize("case", [*PATTERNS, "iterator"])
def test_file_patterns_of_every_kind(tmp_path, monkeypatch, kit, case):
  monkeypatch.chdir(tmp_path)
  kit.write_examples("a0.tfrecord", [1, 2])
  kit.write_examples("a1.tfrecord", [3])
  patterns = PATTERNS.get(case, iter(["a0.tfrecord", "a1.tfrecord"]))
  generator = data.DefaultRecordInputGenerator(patterns)
  generator.set_feature_specifications({"x": kit.spec((), tf.int64, "x")})
  generator.set_label_specifications({})
  for _ in range(2):
    batches = generator.create_dataset("eval")
    assert [int(x) for features, _ in batches for x in features["x"]] == [1, 2, 3]


GENERATORS = {
  "DefaultRecordInputGenerator": lambda **options: data.DefaultRecordInputGenerator(
    "a", **options
  ),
  "StoreInputGenerator": lambda **options: data.StoreInputGenerator("a", **options),
  "GeneratorInputGenerator": lambda **options: data.GeneratorInputGenerator(
    lambda: iter(()), **options
  ),
}
CALLS = "an integer of at least 1, tf.data.AUTOTUNE or None"
DROP, DROPS = "True, False or None", (None, False, np.bool_(True))
DECODING = "a records.ImageDecoding or None"
HOW = (None, records.ImageDecoding(dct_method="INTEGER_FAST"))
FLAGS = (True, np.bool_(False))
OPTIONS = {
  "DefaultRecordInputGenerator": {
    "num_parallel_calls": (
      CALLS,
      [0, -5, 2.5, "a", True, np.int64(0)],
      [1, np.int32(3), tf.data.AUTOTUNE, None],
    ),
    "drop_remainder": (DROP, ["x", 1, 0], DROPS),
    "image_decoding": (DECODING, ["fast", True, {"crops": {}}], HOW),
  },
  "StoreInputGenerator": {
    "drop_remainder": (DROP, ["x", 1, 0], DROPS),
    "stack_on_device": ("True or False", ["x", 1, None], FLAGS),
    "follow": (
      "True, False or a Follow",
      ["x", 1, data.Follow],
      (*FLAGS, data.Follow()),
    ),
    "image_decoding": (DECODING, ["fast", True, {"crops": {}}], HOW),
  },
  "GeneratorInputGenerator": {
    "yields_episodes": ("True or False", ["x", 1, None], FLAGS),
    "drop_remainder": (DROP, ["x", 1, 0], DROPS),
  },
}


@pytest.mark.parametrize(
  ("generator", "option"),
  [(name, option) for name in OPTIONS for option in OPTIONS[name]],
)
def test_options_are_checked_at_construction(generator, option):
  expected, refused, fine = OPTIONS[generator][option]
  for bad in refused:
    want = f"{generator}: {option}: expected {expected}, got {bad!r}."
    with pytest.raises(errors.SpecError, match=f"^{re.escape(want)}"):
      GENERATORS[generator](**{option: bad})
  for good in fine:
    GENERATORS[generator](**{option: good})


def test_image_decoding_names_its_options():
  want = (
    r"got 'fast'\. Its options are .* dct_method, such as records.ImageDecoding\(dct"
  )
  with pytest.raises(errors.SpecError, match=want):
    data.StoreInputGenerator("a", image_decoding="fast")
  with pytest.raises(errors.SpecError, match=r"Make one: @ImageDecoding\(\) in gin"):
    data.StoreInputGenerator("a", image_decoding=records.ImageDecoding)


@pytest.mark.parametrize("bad", ["x", 1])
def test_loaders_check_flags_before_they_open_anything(bad):
  want = f": drop_remainder: expected True, False or None, got {bad!r}"
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    data.StoreWindowLoader("nothing", {}, 2, drop_remainder=bad)


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


def constants():
  window = {"x": specs.ExtendedTensorSpec((3,), tf.float32)}
  made = data.DefaultConstantInputGenerator(1.0, batch_size=2)
  made.set_feature_specifications(window, window)
  made.set_label_specifications({}, {})
  return made


BAD_ARGUMENTS = {
  "no mapping": ({"params": 5}, "params: expected a mapping or None, got 5. Such as"),
  "before the start": (
    {"start_step": -1},
    "start_step: expected an integer of at least 0, got -1",
  ),
  "no step": ({"start_step": "a"}, "start_step: expected an integer"),
  "half a step": ({"start_step": 1.5}, "start_step: expected an integer"),
  "no seed": ({"seed": -3}, "seed: expected an integer of at least 0, got -3"),
  "a large seed": ({"seed": 2**32}, "seed: expected an integer below 4,294,967,296"),
  "no flag": ({"is_flat": "no"}, "is_flat: expected True or False, got 'no'"),
  "no other flag": ({"is_portable": 1}, "is_portable: expected True or"),
  "no size": ({"batch_size": 0}, "batch_size: expected an integer of at"),
  "no size in params": (
    {"params": {"batch_size": 0}},
    "batch_size: expected an integer of at",
  ),
}


@pytest.mark.parametrize("got", BAD_ARGUMENTS)
def test_create_dataset_rejects_bad_arguments(got):
  options, want = BAD_ARGUMENTS[got]
  want = f"DefaultConstantInputGenerator: {want}"
  with pytest.raises(errors.SpecError, match=f"^{re.escape(want)}"):
    constants().create_dataset("train", **options)


def test_params_of_an_estimator_give_the_batch_size():
  params = {"use_tpu": False, "batch_size": 3, 7: 8}
  features, _ = next(iter(constants().create_dataset("train", params)))
  assert len(features["x"]) == 3


# name: what to bind, and an attribute of the generator that is made.
GIN = {
  "DefaultConstantInputGenerator": {"batch_size": 7},
  "DefaultRandomInputGenerator": {"batch_size": 7},
  "DefaultRecordInputGenerator": {"file_patterns": "a", "batch_size": 7},
  "EpisodesInputGenerator": {"dataset": "a", "batch_size": 7},
  "FractionalRecordInputGenerator": {"file_fraction": 0.5},
  "LeRobotInputGenerator": {"dataset_path": "a", "batch_size": 7},
  "MultiEvalRecordInputGenerator": {"eval_map": {"a": "b"}},
  "RldsInputGenerator": {"file_patterns": "a", "batch_size": 7},
  "StoreInputGenerator": {"store_path": "a", "batch_size": 7},
  "WeightedRecordInputGenerator": {"file_patterns": "a", "batch_size": 7},
}


@pytest.mark.parametrize("name", GIN)
def test_generators_are_configured_by_gin(name):
  with gin.unlock_config():
    gin.bind_parameter("DefaultRecordInputGenerator.file_patterns", "a")
    for option, value in GIN[name].items():
      gin.bind_parameter(f"{name}.{option}", value)
  try:
    made = getattr(data, name)()
  finally:
    gin.clear_config()
  assert made.batch_size == GIN[name].get("batch_size", 32)
