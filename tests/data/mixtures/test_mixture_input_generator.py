"""Mixtures: in proportion within each batch, seeded, resumable, reported."""

from __future__ import annotations

import collections
import functools

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, preprocessors, records, specs, store, windows
from t2r_seq.data.input_generator import BatchRequest, add_presence_specs

BASE = {"a": 0, "b": 1000, "c": 2000}


def no_labels(mode=None):
  del mode
  return specs.TensorSpecStruct()


@pytest.fixture(name="mix")
def fixture_mix(tmp_path, kit):
  """Makes a mixture of record files, whose values tell source and number."""

  def make(sizes, weights=None, kind="records", mode="train", **kwargs):
    sources = {}
    for name, size in sizes.items():
      values = range(BASE[name], BASE[name] + size)
      if kind == "records":
        path = kit.write_examples(tmp_path / f"{name}.tfrecord", values)
        sources[name] = data.DefaultRecordInputGenerator(path)
      else:
        sources[name] = counting_source(values)
    mixture = data.MixtureInputGenerator(
      sources, weights, **{"batch_size": 8, "seed": 1, **kwargs}
    )
    model = kit.FakeModel(lambda mode: {"x": kit.spec((), tf.int64, "x")}, no_labels)
    mixture.set_specification_from_model(model, mode)
    return mixture

  return make


class Counting(data.AbstractInputGenerator):
  """Gives its values in order, for ever; resumes exactly, as a store does."""

  def __init__(self, values):
    super().__init__()
    self._values = list(values)

  @property
  def num_examples(self):
    return len(self._values)

  def _create_batches(self, request):
    numbers = tf.data.Dataset.range(request.start_step, 10**6)
    batch_size = request.batch_size
    values = tf.constant(self._values, tf.int64)

    def batch(number):
      places = number * batch_size + tf.range(batch_size, dtype=tf.int64)
      x = tf.gather(values, places % len(self._values))
      return specs.TensorSpecStruct(x=x), specs.TensorSpecStruct()

    return numbers.map(batch)


def counting_source(values):
  return Counting(values)


def rows(dataset):
  return [features["x"].numpy().tolist() for features, _ in dataset]


def by_source(values):
  counts = collections.Counter(value // 1000 for value in values)
  return [counts[base // 1000] for base in sorted(BASE.values())]


@pytest.mark.parametrize("kind", ["records", "counting"])
def test_each_batch_is_in_proportion_and_shuffled(mix, kind):
  mixture = mix({"a": 10, "b": 7, "c": 5}, {"a": 4, "c": 1, "b": 3}, kind)
  batches = rows(mixture.create_dataset("train").take(12))
  assert [by_source(batch) for batch in batches] == [[4, 3, 1]] * 12
  places = {tuple(value // 1000 for value in batch) for batch in batches}
  assert len(places) > 6


@pytest.mark.parametrize("kind", ["records", "counting"])
def test_fractional_shares_read_each_example_once(mix, kind):
  sizes = {"a": 10, "b": 7}
  mixture = mix(sizes, [0.7, 0.3], kind, batch_size=9)
  batches = rows(mixture.create_dataset("train").take(50))
  assert {tuple(by_source(batch)) for batch in batches} == {(6, 3, 0), (7, 2, 0)}
  counts = collections.Counter(value for batch in batches for value in batch)
  for name, share in (("a", 315), ("b", 135)):
    own = [counts[value] for value in range(BASE[name], BASE[name] + sizes[name])]
    assert sum(own) == share
    assert max(own) - min(own) <= 1


def test_static_shapes(mix):
  dataset = mix({"a": 10, "b": 7}, [0.7, 0.3]).create_dataset("train")
  assert dataset.element_spec[0]["x"].shape == [8]
  assert len(dataset.element_spec[1]) == 0


def test_seed_makes_the_batches(mix):
  sizes = {"a": 10, "b": 7}

  def order(**kwargs):
    return rows(mix(sizes, **kwargs).create_dataset("train").take(6))

  assert order(seed=1) == order(seed=1) != order(seed=2)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("weights", [(3, 1), (0.7, 0.3), "by_size"])
def test_workers_read_disjoint_shards_and_resume_at_a_number(
  tmp_path, kit, weights, num_workers
):
  paths = {}
  for name, size in {"a": 24, "b": 12}.items():
    paths[name] = str(tmp_path / name)
    spec = {"x": kit.spec((), tf.int64, "x", is_sequence=True)}
    with store.EpisodeStore.create(paths[name], spec) as writer:
      for part in np.split(np.arange(BASE[name], BASE[name] + size), 4):
        writer.append_episode({"x": part})

  def read(worker, start, end):
    sources = {
      name: data.EpisodesInputGenerator(path, seed=2) for name, path in paths.items()
    }
    mixture = data.MixtureInputGenerator(sources, weights, 4 * num_workers, seed=1)
    mixture.set_feature_specifications({"x": kit.spec((), tf.int64, "x")})
    mixture.set_label_specifications({})
    assert mixture.reads_shards
    context = tf.distribute.InputContext(num_workers, worker, num_workers)
    dataset = mixture.create_dataset("train", start_step=start, input_context=context)
    return rows(dataset.take(end - start))

  found = [read(worker, 0, 9) for worker in range(num_workers)]
  for worker, batches in enumerate(found):
    assert read(worker, 5, 9) == batches[5:]
    assert {len(batch) for batch in batches} == {4}
  share = 0.7 if weights == (0.7, 0.3) else 2 / 3 if weights == "by_size" else 0.75
  for step in zip(*found, strict=True):
    count = by_source([value for batch in step for value in batch])[0]
    assert abs(count - 4 * num_workers * share) < 1
  # No window twice in the first batches, which are of the first pass of each source.
  first = [x for batches in found for batch in batches[:2] for x in batch]
  assert len({*first}) == len(first) == 8 * num_workers


@pytest.mark.parametrize("weights", [[3, 1], [0.7, 0.3], [5, 1]])
def test_resumed_mixture_is_as_exact_as_its_sources(mix, weights):
  sizes = {"a": 10, "b": 7}
  want = rows(mix(sizes, weights, "counting").create_dataset("train").take(30))
  for step in (1, 4, 17):
    mixture = mix(sizes, weights, "counting")
    dataset = mixture.create_dataset("train", start_step=step)
    assert rows(dataset.take(30 - step)) == want[step:]


def test_weights_by_size(mix, kit):
  mixture = mix({"a": 12, "b": 4}, "by_size")
  batches = rows(mixture.create_dataset("train").take(10))
  assert [by_source(batch) for batch in batches] == [[6, 2, 0]] * 10
  # As many examples as there are: an epoch shows each once.
  assert sorted([*batches[0], *batches[1]]) == sorted([*range(12), *range(1000, 1004)])
  assert mixture.num_examples == 16


def test_size_that_nobody_can_tell(mix, kit):
  def generate():
    yield {"x": np.int64(3)}, {}

  sources = {
    "a": data.GeneratorInputGenerator(generate),
    "b": counting_source(range(3)),
  }
  mixture = data.MixtureInputGenerator(sources, "by_size")
  mixture.set_feature_specifications({"x": kit.spec((), tf.int64, "x")})
  mixture.set_label_specifications({})
  assert mixture.num_examples is None is mixture.count_examples()
  with pytest.raises(errors.SpecError, match=r"a: expected a source of known size"):
    mixture.create_dataset("train")


def test_report_tells_examples_and_epochs_of_each_source(mix):
  mixture = mix({"a": 12, "b": 8}, [3, 1], "counting")
  assert mixture.report is None
  # Without a prefetch after it there is nothing read ahead to count.
  for _ in mixture._create_batches(BatchRequest("train", 8)).take(4):
    pass
  report = mixture.report
  assert report.examples["a"] in range(24, 24 + 6 * 40)
  report._counts.assign([24, 8])
  assert report.examples == {"a": 24, "b": 8}
  assert report.sizes == {"a": 12, "b": 8}
  assert report.epochs == {"a": 2.0, "b": 1.0}
  assert report.too_short == 0
  want = "a: 24 examples (2 epochs of 12); b: 8 examples (1 epochs of 8)"
  assert str(report) == want


def test_report_holds_those_of_the_sources(tmp_path, kit):
  sources = {
    name: data.DefaultRecordInputGenerator(
      kit.write_episodes(tmp_path / f"{name}.tfrecord", lengths)
    )
    for name, lengths in (("long", [9, 9]), ("short", [2, 5, 3]))
  }
  mixture = data.MixtureInputGenerator(sources, batch_size=4)
  mixture.set_specification_from_model(kit.FakeModel(), "eval")
  batches = list(mixture.create_dataset("eval"))
  assert [len(labels["next"]) for _, labels in batches] == [4, 4, 4, 2]
  report = mixture.report
  assert report.examples == {"long": 12, "short": 2}
  assert report.epochs == {"long": None, "short": None}
  assert report.too_short == 2
  assert "short: 2 examples (size unknown) from 2 windows from 3 epis" in str(report)
  assert mixture.count_examples() == 14
  assert report.epochs == {"long": 1.0, "short": 1.0}


def stored(path, kit, lengths, first):
  """A store of the kit's episodes, without their images."""
  flat = windows.flat_specs(kit.feature_spec())
  flat = {name: flat[name] for name in ("state", "task")}
  with store.EpisodeStore.create(str(path), flat) as writer:
    for i, length in enumerate(lengths):
      episode = kit.make_episode(first + i, length)
      writer.append_episode({name: episode[name] for name in flat})
  return str(path)


@pytest.mark.parametrize("weights", ["by_size", [2, 1]])
def test_records_and_stores_are_mixed(tmp_path, kit, weights):
  def features(mode):
    del mode
    return {name: kit.feature_spec()[name] for name in ("state", "task")}

  sources = {
    "records": data.DefaultRecordInputGenerator(
      kit.write_episodes(tmp_path / "a.tfrecord", [7, 3, 5])
    ),
    "store": data.StoreInputGenerator(stored(tmp_path / "s", kit, [9, 4], first=3)),
  }
  mixture = data.MixtureInputGenerator(sources, weights, batch_size=6)
  mixture.set_specification_from_model(kit.FakeModel(features), "train")
  num_records, num_stored = 4 + 2, 6 + 1
  seen, batches = collections.Counter(), 0
  for batch, labels in mixture.create_dataset("train").take(13):
    batches += 1
    states = batch["state"].numpy()
    np.testing.assert_array_equal(states[:, -1, 0], batch["task"])
    np.testing.assert_array_equal(states[:, -1, 1] + 1, labels["next"][:, 1])
    seen.update((int(episode), int(step)) for episode, step in states[:, -1])
  from_store = sum(count for (episode, _), count in seen.items() if episode >= 3)
  share = num_stored / (num_records + num_stored) if weights == "by_size" else 1 / 3
  assert abs(from_store - share * 6 * batches) < 1
  assert len(seen) == num_records + num_stored
  sizes = {"records": None, "store": num_stored}
  if weights == "by_size":
    sizes["records"] = num_records
  assert mixture.report.sizes == sizes


def test_source_with_device_stacking_is_refused(tmp_path, kit):
  path = stored(tmp_path / "s", kit, [9], first=0)
  sources = {"s": data.StoreInputGenerator(path, stack_on_device=True)}
  mixture = data.MixtureInputGenerator(sources, batch_size=4)

  def features(mode):
    del mode
    return {"state": kit.feature_spec()["state"]}

  mixture.set_specification_from_model(kit.FakeModel(features), "train")
  want = "s: expected a source that stacks its windows itself, got one with stack_on"
  with pytest.raises(errors.SpecError, match=want):
    mixture.create_dataset("train")


def test_other_modes_are_one_pass_of_each_source_in_turn(mix):
  mixture = mix({"a": 10, "b": 3}, [1, 5], mode="eval")
  got = rows(mixture.create_dataset("eval"))
  assert got == [list(range(8)), [8, 9], [1000, 1001, 1002]]
  assert mixture.report.examples == {"a": 10, "b": 3}


def test_source_without_an_end_is_no_eval(kit):
  sources = {"a": data.DefaultConstantInputGenerator()}
  mixture = data.MixtureInputGenerator(sources)
  mixture.set_specification_from_model(kit.FakeModel(), "eval")
  with pytest.raises(errors.SpecError, match="a: expected a source that ends in mode"):
    mixture.create_dataset("eval")


# Sources that differ.


class Meters(preprocessors.AbstractPreprocessor):
  """Stored in millimetres, as integers; the mixture delivers metres."""

  def get_in_feature_specification(self, mode):
    return {"x": specs.ExtendedTensorSpec((), tf.int64, "x")}

  def get_in_label_specification(self, mode):
    return {}

  def get_out_feature_specification(self, mode):
    return {"x": specs.ExtendedTensorSpec((), tf.float32, "x")}

  def get_out_label_specification(self, mode):
    return {}

  def _preprocess_fn(self, features, labels, mode):
    features["x"] = tf.cast(features["x"], tf.float32) / 1000
    return features, labels


def float_source(kit, tmp_path):
  flat = {"x": kit.spec((), tf.float32, "x")}
  values = [{"x": np.float32(v)} for v in (0.25, 0.5)]
  records.write_records(tmp_path / "f.tfrecord", flat, values)
  return data.DefaultRecordInputGenerator(str(tmp_path / "f.tfrecord"))


@pytest.mark.parametrize("form", ["class", "instance", "own specs"])
def test_preprocessors_make_sources_alike(tmp_path, kit, form):
  path = kit.write_examples(tmp_path / "a.tfrecord", [1000, 2000, 3000])
  sources = {
    "mm": data.DefaultRecordInputGenerator(path),
    "m": float_source(kit, tmp_path),
  }
  chosen = {"mm": Meters} if form == "class" else {"mm": Meters()}
  if form == "own specs":
    chosen, own = {}, Meters()
    sources["mm"].set_feature_specifications(own.get_in_feature_specification("train"))
    sources["mm"].set_label_specifications({})
    sources["mm"].set_preprocess_fn(functools.partial(own.preprocess, mode="train"))
  mixture = data.MixtureInputGenerator(sources, batch_size=6, preprocessors=chosen)
  model = kit.FakeModel(lambda mode: {"x": kit.spec((), tf.float32, "x")}, no_labels)
  mixture.set_specification_from_model(model, "train")
  ((features, _),) = mixture.create_dataset("train").take(1)
  assert sorted(set(features["x"].numpy().tolist())) == [0.25, 0.5, 1, 2, 3]
  # The specs that were set for one mode do not stay in the way of another.
  assert len(list(mixture.create_dataset("train").take(2))) == 2


def test_error_names_all_mismatches_and_their_sources(tmp_path, kit):
  def other():
    yield {"x": np.float32(3)}, {}

  sources = {"a": data.GeneratorInputGenerator(other)}
  sources["b"] = counting_source(range(3))
  for name, source in sources.items():
    dtype = tf.float32 if name == "a" else tf.int64
    source.set_feature_specifications({"x": kit.spec((), dtype, "x")})
    source.set_label_specifications({})
  mixture = data.MixtureInputGenerator(sources)
  mixture.set_feature_specifications({"x": kit.spec((), tf.int64, "x")})
  mixture.set_label_specifications({"xx": kit.spec((2,), tf.float32, "y")})
  want = (
    r"(?s)3 mismatches:.*a: features/x: expected \(\) int64, got \(\) float32\."
    r".*a: labels/xx: expected \(2,\) float32, got nothing\."
    r".*b: labels/xx: expected \(2,\) float32, got nothing\."
  )
  with pytest.raises(errors.SpecError, match=want):
    mixture.create_dataset("train")


def test_preprocessor_that_does_not_give_the_mixtures_specs(mix, tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord", [1])
  for preprocessor in (Meters(), Meters):
    mixture = data.MixtureInputGenerator(
      {"mm": data.DefaultRecordInputGenerator(path)},
      preprocessors={"mm": preprocessor},
    )
    mixture.set_feature_specifications({"x": kit.spec((), tf.float64, "x")})
    mixture.set_label_specifications({})
    want = r"(?s)mm.*features/x.*expected \(\) float64, got \(\) float32"
    with pytest.raises(errors.SpecError, match=want):
      mixture.create_dataset("train")


def optional_specs(kit, **more):
  return specs.TensorSpecStruct(
    {
      "x": kit.spec((), tf.int64, "x"),
      "force": kit.spec((2,), tf.float32, "force", is_optional=True),
      "text": kit.spec((), tf.string, "text", is_optional=True),
      "nowhere": kit.spec((), tf.float32, "nowhere", is_optional=True),
      **more,
    }
  )


def partial_source(kit, tmp_path, name, value, *given):
  row = {"x": np.int64(value)}
  if "force" in given:
    row["force"] = np.full(2, value, np.float32)
  if "text" in given:
    row["text"] = str(value).encode()
  path = str(tmp_path / f"{name}.tfrecord")
  records.write_records(path, optional_specs(kit), [row] * 3)
  return data.DefaultRecordInputGenerator(path)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_paths_that_a_source_lacks_are_zero_and_masked(
  tmp_path, kit, caplog, nested, mode
):
  sources = {
    "a": partial_source(kit, tmp_path, "a", 1, "force"),
    "b": partial_source(kit, tmp_path, "b", 2, "text"),
  }
  if nested:
    inner = {"c": partial_source(kit, tmp_path, "c", 3, "force", "text")}
    inner["d"] = partial_source(kit, tmp_path, "d", 4)
    sources["inner"] = data.MixtureInputGenerator(inner)
  mixture = data.MixtureInputGenerator(sources, batch_size=12)
  masked = add_presence_specs(optional_specs(kit), ["force", "nowhere"])
  mixture.set_specification_from_model(
    kit.FakeModel(lambda mode: masked, no_labels), mode
  )
  with caplog.at_level("INFO", logger="absl"):
    batches = list(mixture.create_dataset(mode).take(4))
  assert set(batches[0][0]) == {"x", "force", "force_mask", "text"}
  seen = collections.Counter(
    (int(x), force.tolist()[0], bool(mask), text)
    for features, _ in batches
    for x, force, mask, text in zip(
      *(features[path].numpy() for path in ("x", "force", "force_mask", "text")),
      strict=True,
    )
  )
  want = {(1, 1.0, True, b""), (2, 0.0, False, b"2")}
  if nested:
    want |= {(3, 3.0, True, b"3"), (4, 0.0, False, b"")}
  assert seen.keys() == want
  assert "Source 'a' lacks ['features/text']: filled with zeros" in caplog.text
  assert "'a': no mask marks which zeros of ['features/text'] are" in caplog.text
  assert "zeros of ['features/force']" not in caplog.text


def test_masks_of_windows_are_false_where_a_source_has_no_such_stack(tmp_path, kit):
  def flat(mode=None):
    stack = kit.feature_spec()
    stack["force"] = kit.spec(
      (2, 1), tf.float32, "force", time_offsets=(-1, 0), is_optional=True
    )
    return add_presence_specs(stack)

  with_force = {**kit.make_episode(1, 5), "force": np.ones((5, 1), np.float32)}
  path = str(tmp_path / "b.tfrecord")
  records.write_records(path, windows.flat_specs(flat()), [with_force])
  sources = {
    "a": data.DefaultRecordInputGenerator(
      kit.write_episodes(tmp_path / "a.tfrecord", [5])
    ),
    "b": data.DefaultRecordInputGenerator(path),
  }
  mixture = data.MixtureInputGenerator(sources, batch_size=6)
  mixture.set_specification_from_model(kit.FakeModel(flat), "train")
  ((features, labels),) = mixture.create_dataset("train").take(1)
  is_b = features["task"].numpy() == 1
  assert is_b.sum() == 3
  np.testing.assert_array_equal(features["force_mask"], np.stack([is_b] * 2, 1))
  np.testing.assert_array_equal(features["force"][..., 0], np.stack([is_b] * 2, 1))
  np.testing.assert_array_equal(labels["next"][:, 0], is_b)


def test_sequences_of_varying_length_are_refused(tmp_path, kit):
  flat = {"state": kit.spec((1,), tf.float32, "state", is_sequence=True)}
  path = str(tmp_path / "a.tfrecord")
  records.write_records(path, flat, [{"state": np.ones((3, 1), np.float32)}])
  mixture = data.MixtureInputGenerator({"a": data.DefaultRecordInputGenerator(path)})
  mixture.set_feature_specifications(flat)
  mixture.set_label_specifications({})
  want = r"a: features/state: .* a step, a fixed number of them, .*sequence_length"
  with pytest.raises(errors.SpecError, match=want):
    mixture.create_dataset("train")


def test_source_explains_its_failures(mix, tmp_path):
  mixture = mix({"a": 5, "b": 5}, mode="eval")
  with open(tmp_path / "b.tfrecord", "rb+") as file:
    file.truncate(file.seek(0, 2) - 3)
  dataset = mixture.create_dataset("eval")
  with (
    pytest.raises(errors.RecordError, match=r"record 4 of .*b.tfrecord"),
    mixture.explain_failures(),
  ):
    list(dataset)


ONE = {"a": data.DefaultConstantInputGenerator()}
REFUSED = {
  "none": (({},), r"sources: expected at least one, got none"),
  "a class": (
    ({"a": data.DefaultConstantInputGenerator},),
    r"sources: a: expected an input generator, .*@DefaultConstantInputGenerator\(\)",
  ),
  "the same twice": (({"a": ONE["a"], "b": ONE["a"]},), "for each source, got that of"),
  "too many weights": (
    (ONE, [1, 2]),
    r"weights: expected 'by_size', 'by_episode', or a weight for",
  ),
  "other names": ((ONE, {"b": 2}), r"weights: expected 'by_size', .*got \{'b': 2\}"),
  "no such mode": ((ONE, "size"), r"weights: expected 'by_size', .* got 'size'"),
  "zero": ((ONE, [0]), "weights: a: expected a number above 0, got 0"),
  "not a number": ((ONE, [float("nan")]), "weights: a: .* got nan"),
  "preprocessor": ((ONE, None, 3, 0, {"aa": Meters}), r"preprocessors: aa: .*mean 'a'"),
  "seed": ((ONE, None, 3, None), "seed: expected an integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_checked_at_construction(name):
  arguments, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    data.MixtureInputGenerator(*arguments)


def test_preprocessor_and_own_specs_are_one_too_many(kit):
  source = data.DefaultConstantInputGenerator()
  source.set_feature_specifications({"x": kit.spec((), tf.int64, "x")})
  source.set_label_specifications({})
  with pytest.raises(errors.SpecError, match="has its own specs, got one"):
    data.MixtureInputGenerator({"a": source}, preprocessors={"a": Meters})


def test_sources_and_inner_mixtures_share_the_memory_budget(kit):
  def episodes():
    while True:
      yield {"x": np.arange(5)}, {}

  a, b, c = (
    data.GeneratorInputGenerator(episodes, yields_episodes=True) for _ in range(3)
  )
  inner = data.MixtureInputGenerator({"b": b, "c": c}, [1, 3])
  outer = data.MixtureInputGenerator({"a": a, "in": inner}, memory_budget=8 * 2**20)
  window = {"x": kit.spec((2,), tf.int64, "x", time_offsets=(-1, 0))}
  model = kit.FakeModel(lambda mode: window, no_labels)
  outer.set_specification_from_model(model, "train")
  outer.create_dataset("train")
  budgets = [source.report.memory_budget for source in (a, b, c)]
  assert budgets == [4 * 2**20, 2**20, 3 * 2**20]


def test_is_configured_by_gin(tmp_path, kit):
  for name in ("a", "b"):
    kit.write_examples(tmp_path / f"{name}.tfrecord", [BASE[name]])
  gin.clear_config()
  gin.parse_config(f"""
    lab/DefaultRecordInputGenerator.file_patterns = '{tmp_path}/a*'
    sim/DefaultRecordInputGenerator.file_patterns = '{tmp_path}/b*'
    MixtureInputGenerator.sources = {{
      'lab': @lab/DefaultRecordInputGenerator(),
      'sim': @sim/DefaultRecordInputGenerator(),
    }}
    MixtureInputGenerator.weights = {{'lab': 3, 'sim': 1}}
    MixtureInputGenerator.batch_size = 4
  """)
  try:
    mixture = data.MixtureInputGenerator()
  finally:
    gin.clear_config()
  model = kit.FakeModel(lambda mode: {"x": kit.spec((), tf.int64, "x")}, no_labels)
  mixture.set_specification_from_model(model, "train")
  (batch,) = rows(mixture.create_dataset("train").take(1))
  assert by_source(batch) == [3, 1, 0]


class Watched(Counting):
  """A source that is watched over while a batch is waited for."""

  def watch(self):
    def look():
      raise errors.ReplayTimeoutError("sample: no answer")

    return look


def test_each_source_watches_over_a_wait():
  mixture = data.MixtureInputGenerator({"a": Counting([1]), "b": Watched([2])})
  with pytest.raises(errors.ReplayTimeoutError, match="sample: no answer"):
    mixture.watch()()
  plain = data.MixtureInputGenerator({"a": Counting([1]), "b": Counting([2])})
  assert plain.watch() is None
