"""When exports are made, and what one promises: the training windows, bit for bit."""

from __future__ import annotations

import os
import resource
import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs, training, windows
from t2r_seq.specs.assets import load_t2r_assets_to_file
from t2r_seq.specs.structures import signature_key
from t2r_seq.training.exports import Exporter

_SPEC = specs.ExtendedTensorSpec


@pytest.fixture(scope="module", params=["repeat", "zero"])
def exported(request, reach, tmp_path_factory):
  """A model trained with one padding, and its loaded export."""
  model_dir = tmp_path_factory.mktemp(request.param)
  model = reach.ReachModel(padding=request.param)
  reach.train(*(str(model_dir), None, 20), t2r_model=model, input_generator_eval=None)
  export_dir = os.path.join(model_dir, "export", "latest")
  version = training.exports.export_versions(export_dir)[-1]
  return model, tf.saved_model.load(os.path.join(export_dir, str(version)))


class Stepper:
  """Steps a SavedModel and keeps its state, with the signatures alone."""

  def __init__(self, loaded):
    self._signatures = loaded.signatures
    self._state = self._signatures["initial_state"](seeds=tf.constant([0]))

  def step(self, episode, t, is_first=None):
    given = {
      "state_image": tf.constant(episode["features/state/image"][t : t + 1]),
      "state_velocity": tf.constant(episode["features/state/velocity"][t : t + 1]),
      "task": tf.constant(episode["features/task"][None]),
      "is_first": tf.constant([t == 0 if is_first is None else is_first]),
    }
    self.seen = self._signatures["inspect"](**given, **self._state)
    outputs = self._signatures["step"](**given, **self._state)
    self._state = {name: outputs[name] for name in self._state}
    return outputs


def test_steps_see_the_training_windows_bit_for_bit(exported, reach, record_path):
  """Whole episodes, the padding of their starts included, through the real pipeline."""
  model, loaded = exported
  policy = Stepper(loaded)
  generator = data.DefaultRecordInputGenerator(record_path, batch_size=1)
  raw = [
    model.preprocessor.get_in_feature_specification(specs.ModeKeys.EVAL),
    model.preprocessor.get_in_label_specification(specs.ModeKeys.EVAL),
  ]
  generator.set_feature_specifications(raw[0], raw[0])
  generator.set_label_specifications(raw[1], raw[1])
  generator.set_padding(model.padding)
  batches = iter(generator.create_dataset(specs.ModeKeys.EVAL))
  num_steps = 0
  for episode in reach.episodes():
    for t in range(len(episode["labels/target"])):
      features, _ = next(batches)
      output = policy.step(episode, t)["inference_output"]
      for path in ("state/image", "state/velocity"):
        seen = policy.seen[f"seen_{path.replace('/', '_')}"]
        np.testing.assert_array_equal(seen, features[path])
      want = model.export_outputs(features)["inference_output"]
      np.testing.assert_array_equal(output, want)
      num_steps += 1
  assert num_steps == 20
  assert next(batches, None) is None


def test_parsed_records_answer_for_their_last_step(exported, reach):
  model, loaded = exported
  policy = Stepper(loaded)
  spec = reach.episode_spec(model)
  some = list(reach.episodes())
  serialized = tf.constant([records.encode_example(spec, e) for e in some])
  got = loaded.signatures["parse_tf_example"](serialized)["inference_output"]
  for row, episode in enumerate(some):
    for t in range(len(episode["labels/target"])):
      want = policy.step(episode, t)["inference_output"]
    np.testing.assert_allclose(got[row], want[0], rtol=1e-5, atol=1e-6)


def test_environments_have_separate_histories(exported, reach):
  _, loaded = exported
  policy = Stepper(loaded)
  a, b = list(reach.episodes(lengths=(4, 4), seed=5))
  alone = []
  for episode in (a, b):
    alone.append([policy.step(episode, t)["inference_output"][0] for t in range(4)])
  state = loaded.signatures["initial_state"](seeds=tf.constant([0, 1]))
  for t in range(4):
    both = {
      "state_image": np.stack([e["features/state/image"][t] for e in (a, b)]),
      "state_velocity": np.stack([e["features/state/velocity"][t] for e in (a, b)]),
      "task": np.ones((2, 1), np.float32),
      "is_first": np.array([t == 0, t == 0]),
    }
    given = {name: tf.constant(value) for name, value in both.items()}
    outputs = loaded.signatures["step"](**given, **state)
    state = {name: outputs[name] for name in state}
    output = outputs["inference_output"]
    np.testing.assert_allclose(output[0], alone[0][t], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(output[1], alone[1][t], rtol=1e-5, atol=1e-6)


def test_is_first_forgets_only_its_own_environment(exported, reach):
  _, loaded = exported
  policy = Stepper(loaded)
  (episode,) = reach.episodes(lengths=(3,))
  for t in range(3):
    policy.step(episode, t)
  restarted = policy.step(episode, 1, is_first=True)["inference_output"]
  (other,) = reach.episodes(lengths=(3,))
  other["features/state/image"] = other["features/state/image"][1:]
  other["features/state/velocity"] = other["features/state/velocity"][1:]
  np.testing.assert_array_equal(restarted, policy.step(other, 0)["inference_output"])


def test_assets_hold_the_raw_specs_and_the_step(trained_dir):
  export_dir = trained_dir / "export" / "latest"
  version = str(training.exports.export_versions(str(export_dir))[-1])
  filename = export_dir / version / "assets.extra" / "t2r_assets.pbtxt"
  assets = load_t2r_assets_to_file(str(filename))
  feature_spec = specs.TensorSpecStruct.from_proto(assets.feature_spec)
  assert feature_spec["state/image"].is_identical_to(
    _SPEC((3, 8, 8, 3), tf.uint8, "image", data_format="png", time_offsets=(-2, -1, 0))
  )
  assert assets.global_step == 30


def test_versions_grow_and_unfinished_exports_are_not_listed(reach, tmp_path):
  model = reach.ReachModel()
  model.build()
  os.makedirs(tmp_path / "partial-17")
  paths = [training.export_saved_model(model, str(tmp_path), i) for i in range(2)]
  versions = training.exports.export_versions(str(tmp_path))
  assert [os.path.basename(path) for path in paths] == [str(v) for v in versions]
  assert versions[0] < versions[1]


_BAD_SPECS = {
  "the future": (
    {"next": _SPEC((2,), tf.float32, "x", time_offsets=1)},
    r"export: next: expected time offsets of at most 0 .*got 1.*make it a label",
  ),
  "the name of step's own argument": (
    {"is_first": _SPEC((), tf.bool, "x")},
    r"export: is_first: expected another path: .*argument of the policy's step",
  ),
  "one argument name for two": (
    {"a/b": _SPEC((2,), tf.float32, "x"), "a_b": _SPEC((2,), tf.float32, "y")},
    r"export: a_b: expected a unique argument name .*got 'a_b', that of a/b",
  ),
}


@pytest.mark.parametrize("case", _BAD_SPECS)
def test_unsupported_specs_are_refused_before_training(
  case, reach, record_path, tmp_path
):
  feature_specs, message = _BAD_SPECS[case]

  class Bad(reach.ReachModel):
    default_preprocessor_cls = None

    def get_feature_specification(self, mode):
      return specs.TensorSpecStruct(feature_specs)

  from t2r_seq import preprocessors

  model = Bad(preprocessor_cls=preprocessors.NoOpPreprocessor)
  with pytest.raises(errors.SpecError, match=message):
    reach.train(str(tmp_path), record_path, 1, t2r_model=model)
  assert not os.listdir(tmp_path)


def test_policy_trained_on_full_windows_repeats_the_first_frame(reach, dropping_run):
  """Under 'drop' a policy must act before its first full window, too."""
  model = dropping_run.model
  export_dir = str(dropping_run.model_dir / "export" / "latest")
  (version,) = training.exports.export_versions(export_dir)
  loaded = tf.saved_model.load(os.path.join(export_dir, str(version)))
  policy = Stepper(loaded)
  (episode,) = reach.episodes(lengths=(5,))
  flat = {p.removeprefix("features/"): v for p, v in episode.items()}
  raw = model.preprocessor.get_in_feature_specification("infer")
  for t in range(5):
    policy.step(episode, t)
    padding = "drop" if t >= 2 else "repeat"
    want = windows.gather_windows(flat, t, raw, padding=padding).state.image
    seen = policy.seen["seen_state_image"][0]
    np.testing.assert_array_equal(seen, want)


def test_declared_masks_are_derived_from_the_history(reach, record_path, tmp_path):
  """A policy is not asked for masks, and makes those that it was trained with."""

  class Masked(reach.ReachModel):
    def get_feature_specification(self, mode):
      return windows.add_mask_specs(super().get_feature_specification(mode))

    def a_func(self, features, mode):
      outputs = super().a_func(features, mode)
      shown = tf.reduce_sum(tf.cast(features.state.image_mask, tf.float32), 1)
      return {"inference_output": outputs["inference_output"] + shown[:, tf.newaxis]}

  model = Masked(padding="zero")
  reach.train(
    *(str(tmp_path), record_path, 2), t2r_model=model, input_generator_eval=None
  )
  export_dir = str(tmp_path / "export" / "latest")
  (version,) = training.exports.export_versions(export_dir)
  loaded = tf.saved_model.load(os.path.join(export_dir, str(version)))
  policy = Stepper(loaded)
  (episode,) = reach.episodes(lengths=(5,))
  raw = model.preprocessor.get_in_feature_specification("infer")
  flat = {p.removeprefix("features/"): v for p, v in episode.items()}
  spec = reach.episode_spec(model)
  for t in range(5):
    output = policy.step(episode, t)["inference_output"]
    window = windows.gather_windows(flat, t, raw, padding="zero")
    shown = policy.seen["seen_state_image_mask"][0]
    np.testing.assert_array_equal(shown, window.state.image_mask)
    np.testing.assert_array_equal(policy.seen["seen_state_velocity_mask"][0], True)
    batch = tf.nest.map_structure(lambda x: x[tf.newaxis], window)
    want = model.export_outputs(batch)["inference_output"]
    np.testing.assert_allclose(output, want, rtol=1e-6)
  serialized = tf.constant([records.encode_example(spec, episode)])
  parsed = loaded.signatures["parse_tf_example"](serialized)["inference_output"]
  np.testing.assert_allclose(parsed, output, rtol=1e-5)


@pytest.fixture(scope="module")
def model(reach):
  """A built model with random weights."""
  model = reach.ReachModel()
  model.build()
  return model


def _versions(model_dir, name):
  return training.exports.export_versions(os.path.join(model_dir, "export", name))


def test_latest_exports_always_and_keeps_the_newest(model, tmp_path):
  exporter = training.LatestExporter(exports_to_keep=2)
  made = [exporter.export(model, str(tmp_path), step, {}) for step in range(3)]
  kept = _versions(tmp_path, "latest")
  assert [os.path.basename(path) for path in made[1:]] == [str(v) for v in kept]


@pytest.mark.parametrize(
  ("larger_is_better", "values", "want"),
  [
    (False, (3.0, 4.0, 2.0, 2.0), [True, False, True, False]),
    (True, (3.0, 4.0, 2.0, 4.5), [True, True, False, True]),
  ],
)
def test_best_exports_what_beats_every_export_before(
  larger_is_better, values, want, model, tmp_path
):
  got = []
  for step, value in enumerate(values):
    # A new exporter each time: the best value must outlive the process.
    exporter = training.BestExporter(metric="score", larger_is_better=larger_is_better)
    metrics = {"score": value}
    got.append(exporter.is_due(str(tmp_path), metrics))
    if got[-1]:
      exporter.export(model, str(tmp_path), step, metrics)
  assert got == want
  assert len(_versions(tmp_path, "best")) == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_full_disk_is_one_error_and_leaves_other_exports(is_there, model, tmp_path):
  exporter = training.LatestExporter()
  made = [exporter.export(model, str(tmp_path), 1, {})] if is_there else []
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
  try:
    with pytest.raises(
      OSError, match=r"export: .*/latest/\d+: expected to write an export, got: .*Make"
    ):
      exporter.export(model, str(tmp_path), 2, {}, *made)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  names = os.listdir(tmp_path / "export" / "latest")
  assert names == [os.path.basename(path) for path in made]


def test_keeping_no_export_is_refused():
  with pytest.raises(
    errors.SpecError, match=r"LatestExporter: exports_to_keep: .*got 0"
  ):
    training.LatestExporter(exports_to_keep=0)


def test_best_waits_for_an_evaluation_and_a_finite_value(model, tmp_path):
  exporter = training.BestExporter()
  assert not exporter.is_due(str(tmp_path), {})
  assert not exporter.is_due(str(tmp_path), {"loss": float("nan")})
  exporter.export(model, str(tmp_path), 1, {"loss": 1.0})
  assert not exporter.is_due(str(tmp_path), {"loss": float("nan")})
  other = training.BestExporter(metric="score", larger_is_better=True)
  assert other.is_due(str(tmp_path), {"score": 0.5})


def test_best_names_the_metrics_that_there_are(tmp_path):
  exporter = training.BestExporter(metric="losss")
  with pytest.raises(errors.SpecError, match=r"\[loss\], got 'losss'. Did you mean 'l"):
    exporter.is_due(str(tmp_path), {"loss": 1.0})


def test_default_exporters_can_be_replaced():
  def only_latest():
    return training.LatestExporter("mine")

  (exporter,) = training.create_default_exporters([only_latest])
  assert isinstance(exporter, training.LatestExporter)
  kinds = [type(exporter) for exporter in training.create_default_exporters()]
  assert kinds == [training.LatestExporter, training.BestExporter]


def test_default_exporters_keep_so_many(model, tmp_path):
  gin.parse_config("create_default_exporters.exports_to_keep = 2")
  latest, _ = training.create_default_exporters()
  for step in range(3):
    latest.export(model, str(tmp_path), step, {})
  assert len(training.exports.export_versions(str(tmp_path / "export" / "latest"))) == 2


class _TextExporter(Exporter):
  """Exports in a way of its own, and knows no other arguments."""

  def is_due(self, model_dir, metrics):
    return True

  def export(self, model, model_dir, global_step, metrics):
    path = os.path.join(model_dir, f"step-{global_step}.txt")
    with open(path, "w") as file:
      file.write("weights")
    return path


def test_exporter_may_override_the_export(reach, tmp_path):
  reach.train(
    str(tmp_path), None, 2, input_generator_eval=None,
    create_exporters_fn=lambda: [
      training.LatestExporter(), _TextExporter("text"), training.LatestExporter("too")
    ],
  )  # fmt: skip
  assert (tmp_path / "step-2.txt").read_text() == "weights"
  for name in ("latest", "too"):
    (version,) = _versions(tmp_path, name)
    assert (tmp_path / "export" / name / str(version) / "saved_model.pb").is_file()


class Slow(training.LatestExporter):
  """Its first export waits until the training is at its end."""

  def __init__(self):
    super().__init__("slow")
    self.release = threading.Event()

  def export(self, *args, **kwargs):
    assert self.release.wait(600)
    return super().export(*args, **kwargs)


class Release(training.Callback):
  """Lets the exporter go at the last evaluation, and keeps what it is told."""

  def __init__(self, slow):
    self.slow, self.exported = slow, []

  def after_evaluation(self, run, metrics):
    if run.step == 30:
      self.slow.release.set()

  def after_export(self, run, name, path):
    assert threading.current_thread() is threading.main_thread()
    self.exported.append((name, path))


class Broken(training.LatestExporter):
  def export(self, *args, **kwargs):
    raise OSError("no space left")


def test_training_does_not_wait_for_exports(reach, record_path, tmp_path):
  class Model(reach.ReachModel):
    def model_eval_fn(self, *args):
      step = tf.cast(self.global_step, tf.float32)
      return {**super().model_eval_fn(*args), "step": step}

  slow, model = Slow(), Model()
  release = Release(slow)
  exporters = [
    slow,
    training.BestExporter("best", metric="step", larger_is_better=True),
    training.BestExporter("worst", metric="step"),
  ]
  reach.train(
    *(str(tmp_path), record_path, 30),
    t2r_model=model,
    create_exporters_fn=lambda: exporters,
    eval_throttle_secs=0.0,
    callbacks=[release],
    async_exports=True,
  )
  steps = {}
  for name, path in release.exported:
    assets = load_t2r_assets_to_file(f"{path}/assets.extra/t2r_assets.pbtxt")
    steps.setdefault(name, []).append(assets.global_step)
  # Of those that waited the newest was made, and each export of a kind in its order.
  assert steps == {"slow": [10, 30], "best": [30], "worst": [10]}
  # It has the weights of its step, which were trained on meanwhile.
  in_spec = model.preprocessor.get_in_feature_specification("infer")
  asked = specs.make_random_numpy(in_spec, batch_size=2, seed=0)
  reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-10"))
  names = model.named_variables
  value = "/.ATTRIBUTES/VARIABLE_VALUE"
  weights = {name: reader.get_tensor(f"model/{name}{value}") for name in names}
  model.take_weights(weights, 10)
  tensors = {path: tf.constant(leaf) for path, leaf in asked.items()}
  want = model.export_outputs(tensors)["inference_output"]
  path = next(path for name, path in release.exported if name == "slow")
  function = tf.saved_model.load(path).signatures["serving_default"]
  got = function(**{signature_key(k): t for k, t in tensors.items()})
  np.testing.assert_allclose(got["inference_output"], want, rtol=1e-5)

  with training.exports.AsyncExports(model) as exports:
    exports.submit([Broken()], str(tmp_path), 30, {})
    with pytest.raises(OSError, match="no space left"):
      exports.join()
