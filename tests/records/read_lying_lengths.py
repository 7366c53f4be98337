"""Gives files to everything that reads TFRecords; prints what each makes of them.

A process of its own: where TensorFlow's reader is given such a file, it dies.

    python read_lying_lengths.py FILE ...
"""

from __future__ import annotations

import sys

import tensorflow as tf

from t2r_seq import convert, data, records, specs, statistics
from t2r_seq.records.check import examine_records
from t2r_seq.records.files import compression_type
from t2r_seq.records.framing import iterate_records

Spec = specs.ExtendedTensorSpec


def count(path, spec):
  with records.explain_failures([path], spec):
    return sum(1 for _ in records.record_dataset(path))


def train(path, policy="raise", window=False):
  spec = {"x": Spec((2,), tf.float32, "x", is_sequence=True)}
  if window:
    spec = {"x": Spec((2, 2), tf.float32, "x", time_offsets=(0, 1))}
  generator = data.DefaultRecordInputGenerator(path, batch_size=2, on_bad_record=policy)
  generator.set_feature_specifications(spec)
  generator.set_label_specifications({})
  with generator.explain_failures():
    for _ in generator.create_dataset("train").take(4):
      pass
  return "trained"


def read(path):
  spec = {"x": Spec((2,), tf.float32, "x", is_sequence=True)}
  acts = {
    "iterate": lambda: len(list(iterate_records(path, kind))),
    "dataset": lambda: count(path, spec),
    "inspect": lambda: records.inspect_records(path),
    "index": lambda: records.write_index(path),
    "convert": lambda: convert.convert(path, path.split(".")[0], spec=spec),
    "statistics": lambda: statistics.compute_statistics(path, None, spec=spec),
    "doctor": lambda: examine_records(path, spec).problems[0],
    "examples": lambda: train(path),
    "windows": lambda: train(path, window=True),
    "skip": lambda: train(path, "skip", window=True),
  }
  kind = compression_type(path)
  for name, act in acts.items():
    try:
      result = act()
    except (Exception, SystemExit) as error:
      result = f"{type(error).__name__}: {error}"
    print(f"{path}\t{name}\t{' '.join(str(result).split())}", flush=True)


if __name__ == "__main__":
  for name in sys.argv[1:]:
    read(name)
