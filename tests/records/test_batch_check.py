"""Batches of records that are checked by threads of several iterators."""

import threading

import pytest
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records import explain
from t2r_seq.records.features import collect_features


def _write(value):
  feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
  example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
  return example.SerializeToString()


@pytest.mark.parametrize("num_records", [1, 40])
def test_no_thread_waits_for_another(monkeypatch, num_records):
  # As where garbage is collected while one traces: that may end an iterator, which
  # waits for its threads, and one of them checks records, too.
  create, others = explain.parse.create_parse_tf_example_fn, []
  data = [_write(7)] * num_records + [b"bad"]

  def create_waiting(*args, **kwargs):
    parse_fn = create(*args, **kwargs)

    def parse(serialized):
      if not others:
        others.append([])
        other = threading.Thread(target=lambda: others[0].append(checker.check(data)))
        other.daemon = True
        other.start()
        other.join(60)
      return parse_fn(serialized)

    return parse

  monkeypatch.setattr(explain.parse, "create_parse_tf_example_fn", create_waiting)
  flat = specs.TensorSpecStruct({"x": specs.ExtendedTensorSpec((), tf.int64, "x")})
  (features,) = collect_features({"": flat}).values()
  checker = explain.BatchChecker(features)
  want = [True] * num_records + [False]
  assert [not r for r in checker.check(data).reasons] == want
  assert [[not r for r in found.reasons] for found in others[0]] == [want]
