"""A TensorSpecStruct is a dict to TensorFlow, and comes back with attributes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import TensorSpecStruct


def make():
  # Not in the order of sorted keys, which is tf.nest's.
  return TensorSpecStruct(
    {
      "train/b": tf.constant([1.0, 2.0]),
      "train/a": tf.constant([3.0, 4.0]),
      "image": tf.constant([b"x", b"y"]),
    }
  )


def to_numpy(struct):
  return {path: leaf.numpy().tolist() for path, leaf in struct.items()}


def test_nest_map_structure():
  struct = make()
  for source in (struct, struct.train):
    mapped = tf.nest.map_structure(lambda leaf: leaf.shape[0], source)
    assert type(mapped) is TensorSpecStruct
    assert list(mapped) == list(source)
    assert set(mapped.values()) == {2}
  mapped = tf.nest.map_structure(tf.identity, struct)
  np.testing.assert_array_equal(mapped.train.a, [3.0, 4.0])
  assert list(struct) == ["train/b", "train/a", "image"]


def test_nest_flattens_by_sorted_paths_and_packs():
  flat = tf.nest.flatten(make())
  assert flat[0].dtype == tf.string
  np.testing.assert_array_equal(flat[1], [3.0, 4.0])
  packed = tf.nest.pack_sequence_as(make(), [0, 1, 2])
  assert packed.to_dict() == {"train/b": 2, "train/a": 1, "image": 0}
  assert packed.train.a == 1


def test_nest_in_other_structures():
  mapped = tf.nest.map_structure(lambda leaf: leaf[0], ({"s": make()}, [make().train]))
  assert mapped[0]["s"].train.b == 1.0
  assert mapped[1][0].a == 3.0
  tf.nest.assert_same_structure(make(), make())
  tf.nest.assert_same_structure(make(), make().to_dict())
  with pytest.raises(ValueError, match="don't have the same"):
    tf.nest.assert_same_structure(make(), make().train)


def test_data_from_slices_map_batch():
  dataset = tf.data.Dataset.from_tensor_slices(make())
  assert type(dataset.element_spec) is TensorSpecStruct
  assert dataset.element_spec.train.a == tf.TensorSpec((), tf.float32)

  def double(struct):
    assert type(struct) is TensorSpecStruct
    struct.train.c = struct.train.a * 2.0
    del struct["train/b"]
    return struct, struct.train

  batch, view = next(iter(dataset.map(double).batch(2)))
  assert to_numpy(batch) == {
    "train/a": [3.0, 4.0],
    "image": [b"x", b"y"],
    "train/c": [6.0, 8.0],
  }
  assert type(view) is TensorSpecStruct
  np.testing.assert_array_equal(view.c, [6.0, 8.0])


def test_data_shuffle_zip_interleave_filter():
  dataset = tf.data.Dataset.from_tensor_slices(make())
  dataset = tf.data.Dataset.zip((dataset.shuffle(2, seed=0), dataset.repeat()))
  dataset = dataset.filter(lambda a, b: a.train.a > 3.5)
  dataset = dataset.interleave(lambda a, b: tf.data.Dataset.from_tensors((a, b)))
  [(a, b)] = list(dataset)
  assert a.train.b == 2.0
  assert type(b) is TensorSpecStruct


# name: what is added to the struct of an element
MORE_LEAVES = {
  "tensors alone": {},
  "a ragged one": {"a/ragged": tf.ragged.constant([[1], [2, 3]])},
  "a sparse one": {"sparse": tf.sparse.eye(2)},
  "a dataset": {"numbers": tf.data.Dataset.range(3)},
  "an optional": {"perhaps": tf.experimental.Optional.from_value(1.0)},
}


@pytest.mark.parametrize("name", MORE_LEAVES)
def test_iterators_give_leaves_at_their_paths(name):
  struct = TensorSpecStruct({**make(), **MORE_LEAVES[name]})
  dataset = tf.data.Dataset.from_tensors(struct)
  got = next(iter(dataset))
  # A tuple's elements are made by tf.data itself.
  want = next(iter(dataset.map(lambda struct: (struct,))))[0]
  assert type(got) is type(want) is TensorSpecStruct
  assert list(got) == list(want) == list(struct)
  for path, leaf in struct.items():
    assert type(got[path]) is type(want[path])
    tf.debugging.assert_equal(*map(to_dense, (got[path], leaf)), message=path)
  got.train.c = tf.constant(0)
  assert "train/c" in got and "train/c" not in dataset.element_spec


def test_iterators_take_the_short_way(monkeypatch):
  # They fall back without a word if TensorFlow no longer asks for it.
  made = []
  make_element = TensorSpecStruct._from_compatible_tensor_list

  def make_and_note(self, tensors):
    made.append(make_element(self, tensors))
    return made[-1]

  monkeypatch.setattr(TensorSpecStruct, "_from_compatible_tensor_list", make_and_note)
  got = list(tf.data.Dataset.from_tensor_slices(make()))
  assert len(got) == 2
  assert all(a is b for a, b in zip(got, made, strict=True))


def to_dense(leaf):
  if isinstance(leaf, tf.sparse.SparseTensor):
    return tf.sparse.to_dense(leaf)
  if isinstance(leaf, tf.data.Dataset):
    return tf.stack(list(leaf))
  if isinstance(leaf, tf.experimental.Optional):
    return leaf.get_value()
  return leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf


def test_data_from_generator_with_specs_as_signature():
  signature = TensorSpecStruct(
    pose=Spec((2,), tf.float32, "p", is_sequence=True), text=Spec((), tf.string, "t")
  )

  def generate():
    yield TensorSpecStruct(pose=np.ones(2, np.float32), text=b"a")
    yield TensorSpecStruct(text=b"b", pose=np.zeros(2, np.float32))

  dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
  first, second = dataset
  assert type(first) is TensorSpecStruct
  assert first.text == b"a"
  np.testing.assert_array_equal(second.pose, [0.0, 0.0])


def test_function_argument_and_result():
  @tf.function
  def swap(struct):
    assert type(struct) is TensorSpecStruct
    return TensorSpecStruct({"out/b": struct.train.a, "out/a": struct.train.b})

  result = swap(make())
  assert type(result) is TensorSpecStruct
  np.testing.assert_array_equal(result.out.a, [1.0, 2.0])
  np.testing.assert_array_equal(result.out.b, [3.0, 4.0])


def test_function_takes_a_view_and_does_not_retrace():
  traces = []

  @tf.function
  def total(view):
    traces.append(type(view))
    return view.a + view.b

  np.testing.assert_array_equal(total(make().train), [4.0, 6.0])
  total(TensorSpecStruct(a=tf.zeros(2), b=tf.zeros(2)))
  total(TensorSpecStruct(b=tf.zeros(2), a=tf.zeros(2)))
  assert traces[0] is TensorSpecStruct
  assert len(traces) <= 2


def test_function_input_signature_of_specs():
  signature = TensorSpecStruct(a=Spec((None,), tf.float32, "n"))

  @tf.function(input_signature=[signature])
  def double(struct):
    return struct.a * 2.0

  np.testing.assert_array_equal(double(TensorSpecStruct(a=tf.ones(3))), [2.0] * 3)
  with pytest.raises(TypeError):
    double(TensorSpecStruct(a=tf.ones((3, 1))))


def test_control_flow_in_functions():
  @tf.function
  def loop(struct):
    def body(i, state):
      return i + 1, tf.nest.map_structure(lambda leaf: leaf + 1.0, state)

    return tf.while_loop(lambda i, _: i < 3, body, (0, struct))[1]

  result = loop(make().train)
  assert type(result) is TensorSpecStruct
  np.testing.assert_array_equal(result.a, [6.0, 7.0])


def test_saved_model_signature_of_specs(tmp_path):
  module = tf.Module()
  signature = [Spec((2,), tf.float32, "a", time_offsets=1)]
  module.double = tf.function(lambda a: {"out": a * 2.0}, input_signature=signature)
  tf.saved_model.save(module, str(tmp_path), signatures=module.double)
  served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
  np.testing.assert_array_equal(served(a=tf.ones(2))["out"], [2.0, 2.0])


def test_tracking_leaves_a_struct_alone():
  module = tf.Module()
  module.struct = make()
  assert type(module.struct) is TensorSpecStruct


def test_keras_layers_take_a_struct():
  class Sum(tf.keras.layers.Layer):
    def __init__(self):
      super().__init__()
      self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, struct):
      return self.dense(struct.train.a) + struct["train/b"]

  struct = TensorSpecStruct({"train/b": tf.ones((2, 1)), "train/a": tf.ones((2, 3))})
  np.testing.assert_array_equal(Sum()(struct), [[4.0], [4.0]])


def test_distribution_strategies_take_a_struct():
  strategy = tf.distribute.MirroredStrategy(["CPU:0"])
  result = strategy.run(tf.function(lambda struct: struct.train), args=(make(),))
  np.testing.assert_array_equal(result.a, [3.0, 4.0])
