"""Statistics of record files and stores against numpy's of the same episodes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, records, specs, windows
from t2r_seq.data import DefaultRecordInputGenerator, StoreInputGenerator
from t2r_seq.episodes import open_episodes
from t2r_seq.specs.packing import encode_image
from t2r_seq.statistics import compute, compute_statistics, load_statistics
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
RNG = np.random.default_rng(0)
FRACTIONS = (0.01, 0.1, 0.5, 0.9, 0.99)


def check_numbers(found, values):
  """Compares figures with those of an array [n, *figures]."""
  values = np.asarray(values, np.float64)
  assert found.kind == "numbers"
  np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-9)
  np.testing.assert_allclose(found.std, values.std(axis=0), rtol=1e-9)
  np.testing.assert_array_equal(found.min, values.min(axis=0))
  np.testing.assert_array_equal(found.max, values.max(axis=0))
  assert found.count.tolist() == np.full(values.shape[1:], len(values)).tolist()
  assert found.rank_error == 0
  want = np.quantile(values, FRACTIONS, axis=0, method="inverted_cdf")
  for index, fraction in enumerate(FRACTIONS):
    np.testing.assert_array_equal(found.quantiles[fraction], want[index])


def joined(data, path):
  """Returns all values of a path, [steps, ...]."""
  return np.concatenate([e[path] for e in data.episodes if path in e])


@pytest.mark.parametrize(
  ("kind", "part_bytes"),
  [
    *(("records", size) for size in (1, 1500, 16 << 20)),
    ("packed", 1500),
    ("store", 1),
  ],
)
def test_episodes(data, kind, part_bytes, monkeypatch):
  monkeypatch.setattr(compute, "PART_BYTES", part_bytes)
  got = compute_statistics(getattr(data, kind), spec=data.spec, images=True)
  lengths = [len(episode["done"]) for episode in data.episodes]
  assert sorted(got.paths) == sorted(data.spec)
  assert got.num_items == len(data.episodes)
  assert got.lengths.num_steps == sum(lengths)
  assert (got.lengths.min, got.lengths.max) == (min(lengths), max(lengths))
  for path in ("state", "done", "force"):
    check_numbers(got.paths[path], joined(data, path))
    assert got.paths[path].per == "element"
  check_numbers(got.paths["goal"], [episode["goal"] for episode in data.episodes])
  check_numbers(got.paths["image"], joined(data, "image").reshape(-1, 3))
  assert (got.paths["image"].per, got.paths["image"].method) == ("channel", "histogram")
  assert (got.paths["task"].kind, got.paths["task"].rows) == ("bytes", 30)
  for path, spec in data.spec.items():
    assert got.spec[path] == spec and got.spec[path].name == spec.name


@pytest.mark.parametrize("kind", ["records", "store"])
def test_images_are_counted_only_by_default(data, kind):
  image = compute_statistics(getattr(data, kind), spec=data.spec).paths["image"]
  num_steps = sum(len(episode["done"]) for episode in data.episodes)
  assert (image.kind, image.rows, image.mean) == ("bytes", num_steps, None)


def test_specs_are_inferred(data):
  got = compute_statistics(data.records)
  np.testing.assert_allclose(
    got.paths["state"].mean, joined(data, "state").astype(np.float64).mean(axis=0)
  )


def test_spec_selects_paths_of_a_store(data):
  wanted = {"state": Spec((2, 3), tf.float32, time_offsets=(-1, 0))}
  got = compute_statistics(data.store, spec=wanted)
  assert list(got.paths) == ["state"]


@pytest.mark.parametrize("kind", ["records", "store"])
def test_workers_do_not_change_a_byte(data, kind, monkeypatch):
  monkeypatch.setattr(compute, "PART_BYTES", 700)
  texts = {
    compute_statistics(
      getattr(data, kind), spec=data.spec, num_workers=workers
    ).to_json()
    for workers in (1, 4, 7)
  }
  assert len(texts) == 1


@pytest.fixture(name="examples")
def fixture_examples(tmp_path):
  """Plain records: rows of numbers, some of which lack an optional one."""
  spec = specs.TensorSpecStruct(
    x=Spec((2,), tf.float32, "x"), y=Spec((), tf.float32, "y", is_optional=True)
  )
  rng = np.random.default_rng(1)
  rows = [
    {"x": rng.normal(size=2).astype(np.float32), "y": np.float32(i)} for i in range(500)
  ]
  for row in rows[::5]:
    del row["y"]
  path = str(tmp_path / "rows.tfrecord")
  records.write_records(path, spec, rows)
  return path, spec, rows


def test_parts_have_few_long_byte_strings(tmp_path, monkeypatch):
  """Episodes that are read in order are counted before all of them are in memory."""
  monkeypatch.setattr(compute, "PART_BYTES", 15_000)
  spec = specs.TensorSpecStruct(text=Spec((), tf.string, "text", is_sequence=True))
  name, calls = str(tmp_path / "a.tfrecord"), []
  episode = {"text": np.array([b"x" * 10_000], object)}
  records.write_records(name, spec, [episode] * 6)

  def called(kind):
    return lambda values: calls.append(kind) or values

  episodes = open_episodes(name, spec=spec).map(called("read"), spec)
  compute_statistics(episodes, transform=called("count"), num_workers=1)
  assert calls.index("count") <= 4 and calls.count("read") == 6


def test_plain_records(examples):
  path, spec, rows = examples
  got = compute_statistics(path, spec=spec)
  assert (got.lengths, got.num_items) == (None, 500)
  check_numbers(got.paths["x"], [row["x"] for row in rows])
  check_numbers(got.paths["y"], [row["y"] for row in rows if "y" in row])
  required = compute_statistics(path, spec={"x": spec["x"]})
  assert required.paths["x"].mean.tolist() == got.paths["x"].mean.tolist()


def to_deltas(episode):
  """Replaces states by their differences."""
  return {"delta": np.diff(episode["state"], axis=0), "goal": episode["goal"]}


@pytest.mark.parametrize("kind", ["records", "store"])
def test_transform(data, kind):
  got = compute_statistics(getattr(data, kind), spec=data.spec, transform=to_deltas)
  deltas = [np.diff(episode["state"], axis=0) for episode in data.episodes]
  assert sorted(got.paths) == ["delta", "goal"]
  assert got.transform.endswith(":to_deltas")
  check_numbers(got.paths["delta"], np.concatenate(deltas))
  check_numbers(got.paths["goal"], [episode["goal"] for episode in data.episodes])


def test_transform_sees_bytes_and_may_use_its_memory_again(data):
  memory = np.zeros((40, 1))

  def sizes(episode):
    assert episode["task"][()] == b"wave"
    memory[: len(episode["image"]), 0] = [len(image) for image in episode["image"]]
    return {"size": memory[: len(episode["image"])]}

  got = compute_statistics(data.store, transform=sizes).paths["size"]
  want = [len(encode_image(i, "png")) for i in joined(data, "image")]
  check_numbers(got, np.reshape(want, (-1, 1)))


class Chunks(preprocessors.NoOpPreprocessor):
  """Actions relative to the first of their chunk."""

  def _preprocess_fn(self, features, labels, mode):
    labels["state"] = labels["state"] - labels["state"][..., :1, :]
    return features, labels


@pytest.mark.parametrize("kind", ["records", "store", "episodes"])
def test_preprocessor(data, kind):
  chunk = Chunks(
    lambda mode: {"done": Spec((), tf.int64, "done", time_offsets=0)},
    lambda mode: {"state": Spec((3, 3), tf.float32, "state", time_offsets=(0, 1, 2))},
  )
  source = open_episodes(data.store) if kind == "episodes" else None
  got = compute_statistics(source or getattr(data, kind), transform=chunk)
  want = [
    episode["state"][i : i + 3] - episode["state"][i]
    for episode in data.episodes
    for i in range(len(episode["state"]))
  ]
  check_numbers(got.paths["state"], np.concatenate(want))
  assert got.paths["state"].spec.shape == (3,)
  assert got.paths["state"].spec.name == "state"
  assert (got.paths["state"].transform, got.paths["done"].transform) == ("Chunks", "")


class Model:
  """Reads one column as features, two frames, and as labels, a chunk."""

  def __init__(self, padding, is_sequence):
    def state(offsets):
      shape = (len(offsets), 3)
      return Spec(
        shape, tf.float32, "state", is_sequence=is_sequence, time_offsets=offsets
      )

    labels = windows.add_mask_specs({"state": state((0, 1, 4))})
    self.preprocessor = self.step_preprocessor = Chunks(
      lambda mode: {"pose": state((-1, 0))}, lambda mode: labels
    )
    self.padding = padding


# name: (padding of the model, the generator's options)
CUTS = {
  "repeat": ("repeat", {}),
  "zero": ("zero", {}),
  "drop": ("drop", {}),
  "repeat, drop": (("repeat", "drop"), {}),
  "shift": ("repeat", {"shift": 3}),
  "stride and shift": ("drop", {"stride": 2, "shift": 2}),
  "sequences": ("repeat", {"sequence_length": 4, "stride": 2, "shift": 3}),
}


# Cuts are one code for both kinds.
@pytest.mark.parametrize(
  ("name", "kind"),
  [
    *((name, "store") for name in CUTS),
    ("repeat", "records"),
    ("sequences", "records"),
  ],
)
def test_model_counts_what_training_shows(data, name, kind):
  padding, options = CUTS[name]
  model = Model(padding, "sequence_length" in options)
  if kind == "store":
    generator = StoreInputGenerator(data.store, 8, **options)
  else:
    generator = DefaultRecordInputGenerator(data.records, 8, **options)
  generator.set_specification_from_model(model, "eval")
  shown = [
    labels["state"].numpy()[labels["state_mask"].numpy()]
    for _, labels in generator.create_dataset("eval")
  ]
  cut = windows.Cut(padding=padding, **options)
  for given in (cut, None) if not options else (cut,):
    got = compute_statistics(getattr(data, kind), transform=model, cut=given)
    check_numbers(got.paths["state"], np.concatenate(shown))


@pytest.mark.parametrize("has_final", [False, True])
def test_n_step_transitions_count_to_the_last_of_an_episode(has_final, tmp_path):
  columns = {
    "obs": Spec((1,), tf.float32, "obs", is_sequence=True),
    "rew": Spec((), tf.float32, "rew", is_sequence=True),
    "done": Spec((), tf.bool, "done", is_sequence=True),
  }
  columns |= {"final_obs": Spec((1,), tf.float32)} if has_final else {}
  path = str(tmp_path / "transitions")
  with EpisodeStore.create(path, columns) as writer:
    for num in (5, 1, 3):
      t = np.arange(num)
      episode = {"obs": np.float32(t[:, None]), "rew": 2.0**t, "done": t == num - 1}
      episode["rew"] = episode["rew"].astype("f4")
      episode |= {"final_obs": np.float32([num])} if has_final else {}
      writer.append_episode(episode)
  spec = {
    "obs": Spec((1,), tf.float32, "obs", time_offsets=0),
    "next_obs": Spec((1,), tf.float32, "obs", time_offsets=1),
    "rew": Spec((), tf.float32, "rew", time_offsets=0),
    "done": Spec((), tf.bool, "done", time_offsets=0),
  }
  generator = StoreInputGenerator(path, 9, n_step=(3, 0.5))
  generator.set_feature_specifications(spec)
  generator.set_label_specifications({})
  ((shown, _),) = generator.create_dataset("eval")
  got = compute_statistics(
    path,
    transform=preprocessors.NoOpPreprocessor(lambda mode: spec, lambda mode: {}),
    cut=windows.Cut(n_step=windows.NStep(3, 0.5)),
  ).paths
  assert got["obs"].rows == 9
  for name in ("obs", "next_obs", "rew"):
    values = shown[name].numpy()
    shape = got[name].spec.shape
    check_numbers(got[name], values.reshape(got[name].rows, *shape))


def test_features_and_labels_of_one_path_have_statistics_each(data, tmp_path):
  def state(offset):
    return {"state": Spec((3,), tf.float32, "state", time_offsets=offset)}

  class Next(preprocessors.NoOpPreprocessor):
    def _preprocess_fn(self, features, labels, mode):
      labels["state"] -= features["state"]
      return features, labels

  model = (lambda mode: state(0), lambda mode: state(1))
  path = str(tmp_path / "statistics.json")
  got = compute_statistics(data.store, path, transform=Next(*model)).paths
  check_numbers(got["features/state"], joined(data, "state"))
  deltas = [np.diff(episode["state"], axis=0) for episode in data.episodes]
  check_numbers(got["labels/state"], np.concatenate(deltas))

  def normalize(**model):
    modes = {"state": "mean_std"}
    return preprocessors.Normalize(**model, statistics_path=path, modes=modes)

  chain = preprocessors.ComposedPreprocessor(*model, [Next, normalize])
  constants = chain.stages[1].constants()
  assert constants["features/state"]["center"][0] > 9e4
  assert abs(constants["labels/state"]["center"][0]) < 1


def test_normalize_of_a_model_is_left_out_of_its_statistics(data):
  def normalize(**model):
    return preprocessors.Normalize(**model, modes={"*": None}, statistics_path="x")

  model = Model("drop", False)
  specs_of = model.preprocessor
  model.step_preprocessor = preprocessors.ComposedPreprocessor(
    specs_of.get_out_feature_specification,
    specs_of.get_out_label_specification,
    [preprocessors.NoOpPreprocessor, Chunks, normalize, Chunks],
  )
  got = compute_statistics(data.store, transform=model).paths["state"]
  want = compute_statistics(data.store, transform=Model("drop", False)).paths["state"]
  assert got.transform == "Chunks"
  np.testing.assert_array_equal(got.std, want.std)


EXTREMES = {
  "int64": (tf.int64, [2**53 + 1, -(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
  "uint64": (tf.uint64, [2**53 + 1, 2**64 - 1], 2**53 + 1, 2**64 - 1),
  "one value": (tf.int64, [2**53 + 1] * 3, 2**53 + 1, 2**53 + 1),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_integers_are_exact(tmp_path, name):
  dtype, values, low, high = EXTREMES[name]
  spec = {"x": Spec((), dtype, is_sequence=True)}
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"x": np.asarray(values, dtype.as_numpy_dtype)})
  found = compute_statistics(tmp_path / "store", tmp_path / "s.json")
  for got in (found, load_statistics(tmp_path / "s.json")):
    assert (int(got.paths["x"].min), int(got.paths["x"].max)) == (low, high)
    assert got.paths["x"].constant == (low == high)
  text = json.loads((tmp_path / "s.json").read_text())["paths"]["x"]
  assert (text["min"], text["max"]) == (low, high)


def test_statistics_count_nan_and_infinity(tmp_path):
  path = str(tmp_path / "store")
  values = np.asarray([[1, 1], [np.nan, 2], [3, np.inf], [5, -np.inf], [np.nan, 4]])
  spec = specs.TensorSpecStruct(x=Spec((2,), tf.float64, is_sequence=True))
  with EpisodeStore.create(path, spec, allow_nan=True) as writer:
    writer.append_episode({"x": values})
  got = compute_statistics(path).paths["x"]
  assert got.nan.tolist() == [2, 0]
  assert (got.posinf.tolist(), got.neginf.tolist()) == ([0, 1], [0, 1])
  assert (got.count.tolist(), got.num_not_finite) == ([3, 3], 4)
  np.testing.assert_allclose(got.mean, [3, 7 / 3], rtol=1e-15)
  assert (got.min.tolist(), got.max.tolist()) == ([1, 1], [5, 4])


# name: (dtype, shape, values)
DTYPES = {
  "bool": (tf.bool, (), np.arange(9) % 2 == 0),
  "int8": (tf.int8, (1,), np.arange(-100, 100).astype(np.int8)[:, None]),
  "uint16": (tf.uint16, (2,), np.arange(600).astype(np.uint16).reshape(-1, 2) * 100),
  "float16": (tf.float16, (), np.linspace(-3, 3, 50).astype(np.float16)),
  "int64": (tf.int64, (), 10**12 + np.arange(50) * 1000),
  "uint8, many": (tf.uint8, (40,), RNG.integers(0, 256, (90, 40)).astype(np.uint8)),
  "int8, many": (tf.int8, (40,), RNG.integers(-128, 128, (9, 40)).astype(np.int8)),
  "matrix": (tf.float32, (2, 3), np.arange(60).astype(np.float32).reshape(-1, 2, 3)),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(tmp_path, name):
  dtype, shape, values = DTYPES[name]
  path = str(tmp_path / "store")
  spec = specs.TensorSpecStruct(x=Spec(shape, dtype, is_sequence=True))
  with EpisodeStore.create(path, spec) as writer:
    writer.append_episode({"x": values})
  check_numbers(compute_statistics(path).paths["x"], values)


def test_images_of_floats_have_figures_per_channel(tmp_path):
  values = RNG.normal(size=(300, 5, 4, 3)).astype(np.float32)
  spec = specs.TensorSpecStruct(x=Spec((5, 4, 3), tf.float32, is_sequence=True))
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"x": values})
  found = compute_statistics(tmp_path / "store").paths["x"]
  columns = values.reshape(-1, 3).astype(np.float64)
  assert (found.per, found.method, found.rows) == ("channel", "sketch", 300)
  np.testing.assert_allclose(found.std, columns.std(axis=0), rtol=1e-9)
  assert 0 < found.rank_error < 0.001
  for fraction, quantiles in found.quantiles.items():
    below = (columns < quantiles).mean(axis=0)
    np.testing.assert_allclose(below, fraction, atol=found.rank_error + 1 / 6000)


def test_numbers_without_an_order_are_counted(tmp_path):
  path = str(tmp_path / "store")
  spec = specs.TensorSpecStruct(x=Spec((), tf.complex64, is_sequence=True))
  with EpisodeStore.create(path, spec) as writer:
    writer.append_episode({"x": np.zeros(4, np.complex64)})
  got = compute_statistics(path).paths["x"]
  assert (got.kind, got.rows) == ("unsupported", 4)


def test_large_vector_has_one_figure_a_path(tmp_path):
  path = str(tmp_path / "store")
  spec = specs.TensorSpecStruct(x=Spec((3000,), tf.float32, is_sequence=True))
  values = np.random.default_rng(0).normal(size=(20, 3000)).astype(np.float32)
  with EpisodeStore.create(path, spec) as writer:
    writer.append_episode({"x": values})
  got = compute_statistics(path).paths["x"]
  assert (got.per, got.mean.shape, int(got.count)) == ("tensor", (), 60_000)
  np.testing.assert_allclose(got.std, values.astype(np.float64).std(), rtol=1e-9)
  assert 0 < got.rank_error < 0.001


def grows(episode):
  """Returns another shape for every episode."""
  return {"x": np.zeros((2, len(episode["done"])))}


def scalar(episode):
  """Returns a value for the episode under a new name."""
  return {"x": np.float32(len(episode["done"]))}


ERRORS = {
  "shapes of a transform": (
    "store", {"transform": grows}, r"statistics: x: expected \(\d+,\) float64, as in",
  ),
  "scalars of a transform": (
    "store", {"transform": scalar}, r"scalar: x: expected values of every step",
  ),
  "no function": (
    "store", {"transform": 3}, "transform: expected a function of an episode or a prep",
  ),
  "a class": (
    "store", {"transform": Chunks}, "expected a function of an episode or a prep",
  ),
  "no colon": ("store", {"transform": "numpy"}, "expected MODULE:NAME, got 'numpy'"),
  "no such name": (
    "store", {"transform": "numpy:difff"}, "a name of numpy, got 'difff'. Did you mean",
  ),
  "a cut of a function": (
    "store", {"transform": to_deltas, "cut": windows.Cut()}, "cut: expected None, as",
  ),
  "a path that is missing": (
    "store",
    {"transform": preprocessors.NoOpPreprocessor(
      lambda mode: {"stat": Spec((3,), tf.float32, time_offsets=0)})},
    "features/stat: expected .* got nothing.* Did you mean 'state'",
  ),
  "spec of a store": (
    "store", {"spec": {"stat": Spec((3,), tf.float32, is_sequence=True)}}, "stat",
  ),
  "spec of records": (
    "records", {"spec": {"state": Spec((4,), tf.float32, "state", is_sequence=True)}},
    r"record 0 of .*part-0.tfrecord",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(data, name):
  kind, arguments, match = ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    compute_statistics(getattr(data, kind), **arguments)


def test_preprocessors_need_decoded_images(data):
  image = Spec((4, 6, 3), tf.uint8, "image", data_format="png", time_offsets=0)
  preprocessor = preprocessors.NoOpPreprocessor(lambda mode: {"image": image})
  with pytest.raises(errors.SpecError, match=r"decoded images at \[image\].*--images"):
    compute_statistics(data.store, transform=preprocessor)
  got = compute_statistics(data.store, transform=preprocessor, images=True)
  check_numbers(got.paths["image"], joined(data, "image").reshape(-1, 3))


def test_empty_store(tmp_path):
  path = str(tmp_path / "store")
  spec = specs.TensorSpecStruct(x=Spec((), tf.float32, is_sequence=True))
  EpisodeStore.create(path, spec).close()
  with pytest.raises(errors.SpecError, match="expected episodes, got none"):
    compute_statistics(path)


def test_truncated_file(data, tmp_path):
  content = (data.folder / "part-0.tfrecord").read_bytes()
  path = tmp_path / "cut.tfrecord"
  path.write_bytes(content + content[:5])
  with pytest.raises(errors.RecordError, match=r"record 10 of .*cut.tfrecord.*truncat"):
    compute_statistics(str(path), spec=data.spec)


def test_padding_that_nobody_wrote_is_no_data(tmp_path, caplog):
  def write(name, lists):
    with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
      for number, values in enumerate(lists):
        feature = {
          "lat": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
          "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }
        if name == "alone":
          del feature["n"]
        features = tf.train.Features(feature=feature)
        writer.write(tf.train.Example(features=features).SerializeToString())
    return str(tmp_path / name)

  lists = [[41.0]] * 9 + [[]]
  with caplog.at_level("WARNING", "absl"):
    found = compute_statistics(write("both", lists), str(tmp_path / "s.json"))
  assert set(found.paths) == {"n"} and found.num_items == 10
  assert "No statistics of 'lat'. Its records have different numbers" in caplog.text
  with pytest.raises(errors.SpecError, match="lat: expected as many values in every"):
    compute_statistics(write("alone", lists), str(tmp_path / "t.json"))
