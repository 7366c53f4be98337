"""Every seeded fault between training and deployment is found, with its path."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  errors,
  models,
  policies,
  preprocessors,
  specs,
  statistics,
  training,
  verification,
  windows,
)
from t2r_seq.policies import execution as execution_lib
from t2r_seq.store import EpisodeStore

_SPEC = specs.ExtendedTensorSpec
LENGTHS = (5, 7, 4)
SIZE = 6
STORED = {
  "camera/left": _SPEC((SIZE, SIZE, 3), tf.uint8, "left", is_sequence=True),
  "camera/right": _SPEC((SIZE, SIZE, 3), tf.uint8, "right", is_sequence=True),
  "state/pos": _SPEC((3,), tf.float32, "pos", is_sequence=True),
  "goal": _SPEC((2,), tf.float32, "goal"),
  "target": _SPEC((2,), tf.float32, "target", is_sequence=True),
}
CAMERAS = ("camera/left", "camera/right")


class ReachModel(models.RegressionModel):
  """Two cameras, positions with a mask, and a goal; chunks of four actions."""

  offsets = (-2, -1, 0)
  scale = 1.0

  def get_feature_specification(self, mode):
    image = functools.partial(_SPEC, (2, SIZE, SIZE, 3), tf.float32)
    features = {
      "camera/left": image("left", time_offsets=(-1, 0)),
      "camera/right": image("right", time_offsets=(-1, 0)),
      "state/pos": _SPEC((3, 3), tf.float32, "pos", time_offsets=self.offsets),
      "goal": _SPEC((2,), tf.float32, "goal"),
    }
    return windows.add_mask_specs(specs.TensorSpecStruct(features), ["state/pos"])

  def get_label_specification(self, mode):
    target = _SPEC((4, 2), tf.float32, "target", time_offsets=(0, 1, 2, 3))
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(8)

  def a_func(self, features, mode):
    mask = tf.cast(features.state.pos_mask, tf.float32)
    parts = [features.camera.left, features.camera.right, features.state.pos, mask]
    sizes = [2 * SIZE * SIZE * 3] * 2 + [9, 3]
    flat = [tf.reshape(x, [-1, n]) for x, n in zip(parts, sizes, strict=True)]
    predicted = self.network(tf.concat([*flat, features.goal], axis=-1))
    return {"inference_output": self.scale * tf.reshape(predicted, [-1, 4, 2])}


class Changed(preprocessors.NoOpPreprocessor):
  """Changes features where the policy runs, and not in training."""

  def __init__(self, *args, change, **kwargs):
    super().__init__(*args, **kwargs)
    self._change = change

  def _preprocess_fn(self, features, labels, mode):
    if mode == specs.ModeKeys.INFER:
      features = self._change(features)
    return features, labels


def _preprocessing(statistics_path, change=None):
  stages = [
    functools.partial(
      preprocessors.Normalize,
      statistics_path=statistics_path,
      modes={"state/pos": "mean_std"},
    ),
    functools.partial(preprocessors.ImageToFloatPreprocessor, image_paths=CAMERAS),
  ]
  if change is not None:
    stages.append(functools.partial(Changed, change=change))
  return functools.partial(
    preprocessors.ComposedPreprocessor, preprocessor_classes=stages
  )


def _image(rng, num_steps, low, high):
  """Pictures that are smooth, as those of cameras."""
  coarse = rng.uniform(low, high, [num_steps, 3, 3, 3])
  fine = coarse.repeat(2, axis=1).repeat(2, axis=2)
  return (fine + rng.uniform(0, 3, fine.shape)).astype(np.uint8)


def _episodes(seed=0):
  rng = np.random.default_rng(seed)
  return [
    {
      # Of a camera the red is bright; one camera is brighter than the other.
      "camera/left": _image(rng, n, (120, 60, 0), (250, 150, 60)),
      "camera/right": _image(rng, n, (40, 10, 0), (100, 60, 30)),
      "state/pos": rng.normal((3, -1, 40), (2, 0.5, 9), [n, 3]).astype(np.float32),
      "goal": rng.normal(size=2).astype(np.float32),
      "target": rng.normal(size=[n, 2]).astype(np.float32),
    }
    for n in LENGTHS
  ]


def _write(path, episodes, spec=None, fps=20):
  metadata = {"lerobot": {"fps": fps}}
  with EpisodeStore.create(
    str(path), spec or STORED, metadata=metadata, allow_nan=True
  ) as writer:
    for episode in episodes:
      writer.append_episode(episode)
  return str(path)


class Bench:
  """The data, the model, and one export of it, which the faults are tried on."""

  def __init__(self, folder):
    self.folder = folder
    self.store = _write(folder / "store", _episodes())
    self.statistics = str(folder / "statistics.json")
    statistics.compute_statistics(self.store, self.statistics)
    self.model = self.make()
    self.model.build()
    training.export_saved_model(self.model, str(folder / "export"), global_step=7)
    self.predictor = self.load(policies.ExportedSavedModelPredictor)

  def make(self, model_cls=ReachModel, change=None, statistics_path=None, **options):
    """A model of the same kind, with other options."""
    options = {"execution": policies.ChunkExecution(2), **options}
    preprocessor = _preprocessing(statistics_path or self.statistics, change)
    return model_cls(preprocessor_cls=preprocessor, control_period=1 / 20, **options)

  def load(self, predictor_cls):
    """The export, by some predictor."""
    predictor = predictor_cls(str(self.folder / "export"), timeout=0, allow_nan=True)
    assert predictor.restore()
    return predictor

  def untrained(self, model):
    """A predictor of a model that is exported otherwise."""
    tf.keras.utils.set_random_seed(1)
    predictor = policies.CheckpointPredictor(model, allow_nan=True)
    predictor.init_randomly()
    return predictor

  def verify(self, predictor=None, **options):
    """Verifies against the data and the model, unless told otherwise."""
    model = options.pop("model", self.model)
    store = options.pop("store", self.store)
    return verification.verify(predictor or self.predictor, store, model, **options)


@pytest.fixture(name="bench", scope="module")
def fixture_bench(tmp_path_factory):
  """One for all."""
  tf.keras.utils.set_random_seed(0)
  return Bench(tmp_path_factory.mktemp("bench"))


class ToldModel(models.RegressionModel):
  """Does what a text says, one for each episode."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      told=_SPEC((8,), tf.float32, "told"),
      pos=_SPEC((2, 3), tf.float32, "pos", time_offsets=(-1, 0)),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((2,), tf.float32, "target"))

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    pos = tf.reshape(features.pos, [-1, 6])
    return {"inference_output": self.network(tf.concat([features.told, pos], -1))}


def test_texts_are_compared_too(tmp_path):
  def write(name, texts):
    spec = {
      "told": _SPEC((), tf.string, "told"),
      "pos": STORED["state/pos"],
      "target": STORED["target"],
    }
    episodes = [
      {"told": text, "pos": each["state/pos"], "target": each["target"]}
      for text, each in zip(texts, _episodes(), strict=True)
    ]
    return _write(tmp_path / name, episodes, spec)

  told = functools.partial(preprocessors.HashedTextPreprocessor, text_paths=["told"])
  model = ToldModel(action_size=2, preprocessor_cls=told)
  predictor = policies.CheckpointPredictor(model)
  predictor.init_randomly()
  path = write("told", ["go left", "go right", "stop"])
  report = verification.verify(predictor, path, model)
  assert report.is_identical, str(report)
  with pytest.MonkeyPatch.context() as patch:
    step = predictor.step

    def deaf(observation, **options):
      heard = {**observation, "told": np.full_like(observation["told"], b"")}
      return step(heard, **options)

    patch.setattr(predictor, "step", deaf)
    assert not verification.verify(predictor, path, model).is_identical


def test_faithful_export_is_identical(bench):
  report = bench.verify(statistics_path=bench.statistics, reference=None)
  assert report.is_identical, str(report)
  assert (report.num_episodes, report.num_steps) == (3, sum(LENGTHS))
  assert not report.warnings
  text = str(report)
  assert text.endswith("3 episodes, 16 steps, identical.")
  for part in (
    "windows of camera/left, camera/right, goal, state/pos, bit for bit",
    "masks of state/pos_mask, bit for bit",
    "network inputs camera/left, camera/right, goal, state/pos,",
    "the export's network on training windows, within 0.5 % of each element's range",
    "the execution of the chunks of inference_output",
  ):
    assert part in " ".join(text.split()), text
  figures = bench.predictor.get_policy_record().normalization["features/state/pos"]
  assert figures["mode"] == "mean_std" and len(figures["scale"]) == 3
  raw = bench.verify(model=None)
  assert raw.is_identical and str(raw).endswith("identical, as far as was compared.")
  assert "not compared: preprocessed values, because the model's code is" in str(raw)


def _at(path, change):
  """Glue that changes one path."""
  return lambda observed, begins: {**observed, path: change(observed[path])}


def _swap(observed, begins):
  left, right = observed["camera/left"], observed["camera/right"]
  return {**observed, "camera/left": right, "camera/right": left}


class Late:
  """Glue that gives a path as it was some steps before, by a rule."""

  def __init__(self, path, takes):
    self._path, self._takes = path, takes
    self._seen = []

  def __call__(self, observed, begins):
    if begins:
      self._seen = []
    self._seen.append(observed[self._path])
    step = max(self._takes(len(self._seen) - 1), 0)
    return {**observed, self._path: self._seen[step]}


class Stale:
  """Glue that keeps the first goal for ever."""

  def __init__(self):
    self._goal = None

  def __call__(self, observed, begins):
    self._goal = observed["goal"] if self._goal is None else self._goal
    return {**observed, "goal": self._goal}


def _blur(image):
  small = image.reshape([SIZE // 2, 2, SIZE // 2, 2, 3]).mean((1, 3))
  return small.repeat(2, 0).repeat(2, 1).astype(image.dtype)


def _jpeg(image):
  return tf.io.decode_jpeg(tf.io.encode_jpeg(image, quality=60)).numpy()


def _without(path):
  return lambda observed, begins: {k: v for k, v in observed.items() if k != path}


LEFT, POS = "camera/left", "state/pos"
# What a robot's code does to an observation: (glue, path, stage, cause).
GLUE = {
  "BGR": (lambda: _at(LEFT, lambda x: x[..., ::-1]), LEFT, "window", "BGR for RGB"),
  "swapped cameras": (lambda: _swap, LEFT, "window", "as camera/right: the two are"),
  "scaled to 0 ... 1": (lambda: _at(LEFT, lambda x: x / 255), LEFT, "observation", ""),
  "scaled to bytes 0 and 1": (
    lambda: _at(LEFT, lambda x: (x / 255).astype(np.uint8)), LEFT, "window", "",
  ),
  "half as bright": (
    lambda: _at(LEFT, lambda x: x // 2), LEFT, "window", r"0\.[45]\d* times training's",
  ),
  "upside down": (lambda: _at(LEFT, lambda x: x[::-1]), LEFT, "window", "upside down"),
  "mirrored": (lambda: _at(LEFT, lambda x: x[:, ::-1]), LEFT, "window", "mirrored"),
  "turned": (
    lambda: _at(LEFT, lambda x: x[::-1, ::-1]), LEFT, "window", "turned by 180 degrees",
  ),
  "transposed": (
    lambda: _at(LEFT, lambda x: x.swapaxes(0, 1)), LEFT, "window", "rows and columns",
  ),
  "another crop": (
    lambda: _at(LEFT, lambda x: np.roll(x, (1, -1), (0, 1))), LEFT, "window",
    r"another crop: the image is moved by \(-1, 1\) pixels",
  ),
  "another resize": (lambda: _at(LEFT, _blur), LEFT, "window", "another resize"),
  "a lossy stream": (lambda: _at(LEFT, _jpeg), LEFT, "window", "lossy compression"),
  "a late camera": (
    lambda: Late(LEFT, lambda t: t - 1), LEFT, "window", "it comes 1 step late",
  ),
  "30 for 60 Hz": (
    lambda: Late(LEFT, lambda t: t - t % 2), LEFT, "window", "repeat the one before",
  ),
  "a frozen camera": (lambda: Late(LEFT, lambda t: 0), LEFT, "window", "stands still"),
  "half precision": (
    lambda: _at(POS, lambda x: x.astype(np.float16)), POS, "window", "float16",
  ),
  "float64 is no fault": (lambda: _at(POS, np.float64), None, "", ""),
  "whole numbers": (
    lambda: _at(POS, lambda x: np.round(x)), POS, "window", "whole numbers",
  ),
  "radians": (
    lambda: _at(POS, lambda x: np.deg2rad(x)), POS, "window", "in radians where",
  ),
  "millimetres": (
    lambda: _at(POS, lambda x: x * 1000), POS, "window", "a thousand times training's",
  ),
  "another sign": (lambda: _at(POS, np.negative), POS, "window", "of the other sign"),
  "another order": (
    lambda: _at(POS, lambda x: x[[2, 0, 1]]), POS, "window",
    r"in another order: \[2, 0, 1\]",
  ),
  "normalised by the robot": (
    lambda: _at(POS, lambda x: (x - np.float32([3, -1, 40])) / np.float32([2, 0.5, 9])),
    POS, "window", "scaled by other statistics",
  ),
  "clipped": (
    lambda: _at(POS, lambda x: np.clip(x, -1, 30)), POS, "window", "it is clipped to",
  ),
  "not a number": (
    lambda: _at(POS, lambda x: x * np.float32([1, np.nan, 1])), POS, "window",
    "are not finite",
  ),
  "a stale goal": (Stale, "goal", "window", ""),
  "no camera": (lambda: _without("camera/right"), "camera/right", "observation", ""),
  "another size": (
    lambda: _at(LEFT, lambda x: x[:4]), LEFT, "observation", "camera/left: expected",
  ),
}  # fmt: skip


def _check(report, path, stage, cause, num=None):
  """Checks the first difference."""
  if path is None:
    assert report.is_identical, str(report)
    return
  assert not report.is_identical
  first = report.differences[0]
  assert (first.path, first.stage) == (path, stage), str(report)
  assert re.search(cause, " ".join(first.causes)), str(report)
  assert f"{path} differs first" in str(report)


@pytest.mark.parametrize("fault", GLUE)
def test_verify_finds_faults_of_robot_code(bench, fault):
  make, path, stage, cause = GLUE[fault]
  _check(bench.verify(observe=make()), path, stage, cause)


class LateModel(ReachModel):
  """Looks one step further back."""

  offsets = (-3, -2, -1)


class SparseModel(ReachModel):
  """Looks at every second step."""

  offsets = (-4, -2, 0)


class WeakModel(ReachModel):
  """Half of the action."""

  scale = 0.5


class NotReset(policies.ExportedSavedModelPredictor):
  """Forgets nothing."""

  def step(self, features, is_first=None):
    self._acting._is_fresh = False
    return super().step(features, [False])

  def inspect(self, features, is_first=None):
    self._acting._is_fresh = False
    return super().inspect(features, [False])


def _feature(path, change):
  def changed(features):
    features[path] = change(features[path])
    return features

  return changed


def _second_action(bench):
  plan = execution_lib.ChunkRunner._plan
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      execution_lib.ChunkRunner,
      "_plan",
      lambda self, chunk, *rest: plan(self, tf.roll(chunk, -1, axis=1), *rest),
    )
    return bench.verify(bench.untrained(bench.make()))


def _declares_another_execution(bench):
  predictor = bench.load(policies.ExportedSavedModelPredictor)
  record = policies.policy_model.PolicyRecord(
    "repeat", None, policies.ChunkExecution(4)
  )
  predictor.get_policy_record = lambda: record
  return bench.verify(predictor)


def _with_other_statistics(bench):
  path = bench.folder / "other_statistics.json"
  if not path.exists():
    changed = _episodes()
    for episode in changed:
      episode[POS] = episode[POS] * 2 + 1
    store = _write(bench.folder / "other_store", changed)
    statistics.compute_statistics(store, str(path))
  return bench.make(statistics_path=str(path))


def _of_weak(bench, **reference):
  """The reference of the run, where the export gives half of the action."""
  good = bench.untrained(bench.make())
  return bench.verify(bench.untrained(bench.make(WeakModel)), reference=good)


# Faults of the export, and of what trained: (verify, path, stage, cause).
EXPORTS = {
  "another padding": (
    lambda bench: bench.verify(bench.untrained(bench.make(padding="zero"))),
    LEFT, "window", "another padding: zeros stand where training repeats the first",
  ),
  "trained with another padding": (
    lambda bench: bench.verify(model=bench.make(padding="zero")),
    LEFT, "window", "the first step is repeated where training has zeros",
  ),
  "a history that is late by one": (
    lambda bench: bench.verify(bench.untrained(bench.make(LateModel))),
    POS, "window", "it comes 1 step late",
  ),
  "a history of another period": (
    lambda bench: bench.verify(bench.untrained(bench.make(SparseModel))),
    POS, "window", r"shows the steps \(-4, -2, 0\) in place of \(-2, -1, 0\)",
  ),
  "a history that is not reset": (
    lambda bench: bench.verify(bench.load(NotReset)),
    LEFT, "window", "the history was not reset",
  ),
  "an inverted mask": (
    lambda bench: bench.verify(
      bench.untrained(bench.make(change=_feature("state/pos_mask", tf.logical_not)))
    ),
    "state/pos_mask", "network input", "the mask is inverted",
  ),
  "/255 twice": (
    lambda bench: bench.verify(
      bench.untrained(bench.make(change=_feature(LEFT, lambda x: x / 255)))
    ),
    LEFT, "network input", "divided by 255 once more",
  ),
  "/255 not at all": (
    lambda bench: bench.verify(
      bench.untrained(bench.make(change=_feature(LEFT, lambda x: x * 255)))
    ),
    LEFT, "network input", "not divided by 255|raw values",
  ),
  "another crop at inference": (
    lambda bench: bench.verify(
      bench.untrained(
        bench.make(change=_feature(LEFT, lambda x: tf.roll(x, [1, 1], [2, 3])))
      )
    ),
    LEFT, "network input", "another crop",
  ),
  "stale statistics in the export": (
    lambda bench: bench.verify(bench.untrained(_with_other_statistics(bench))),
    POS, "network input", "stale statistics",
  ),
  "new statistics in training": (
    lambda bench: bench.verify(model=_with_other_statistics(bench)),
    POS, "network input", "stale statistics",
  ),
  "a chunk from its second action": (
    _second_action, "inference_output", "action", "executed from its action 2 on",
  ),
  "another execution than is declared": (
    _declares_another_execution,
    "inference_output", "action", "num_executed=2, .* in place of 4",
  ),
  "another action scale": (
    _of_weak, "inference_output", "output", "0.5 times training's",
  ),
  "other weights, as without their averages": (
    lambda bench: bench.verify(reference=bench.untrained(bench.make())),
    "inference_output", "output", "",
  ),
}  # fmt: skip


@pytest.mark.parametrize("fault", EXPORTS)
def test_faults_of_exports_and_training_are_found(bench, fault):
  run, path, stage, cause = EXPORTS[fault]
  _check(run(bench), path, stage, cause)


def _each(path, change):
  def changed(episodes):
    for episode in episodes:
      episode[path] = change(episode[path])
    return episodes

  return changed


def _crossed(episodes):
  return [_swap(episode, True) for episode in episodes]


# Data of another kind than was trained on: (change, fps, warning).
DATA = {
  "values out of range": (
    _each(POS, lambda x: x * np.float32([1, 1, 3])), 20,
    r"state/pos: the elements \[2\] are outside of the range of training",
  ),
  "BGR": (
    _each(LEFT, lambda x: x[..., ::-1]), 20,
    "camera/left: its channels look swapped, BGR for RGB",
  ),
  "swapped cameras": (_crossed, 20, "camera/left and camera/right look swapped"),
  "another control period": (
    lambda episodes: episodes, 60,
    r"a step every 16.67 ms \(60 Hz\), .* trained on one every 50 ms \(20 Hz\)",
  ),
  "a constant feature": (
    _each(POS, lambda x: x * np.float32([0, 1, 1]) + np.float32([3, 0, 0])), 20,
    r"state/pos: the elements \[0\] are constant, 3",
  ),
  "not a number": (
    _each(POS, lambda x: np.where(x == x[1], np.float32(np.nan), x)), 20,
    "state/pos: 9 values are NaN",
  ),
  "another mean": (
    _each(POS, lambda x: np.float32([6, -1, 40]) + (x - np.float32([3, -1, 40])) * 0.1),
    20, r"state/pos: the elements \[0\] are more than 1 standard deviation off",
  ),
}  # fmt: skip


@pytest.mark.parametrize("fault", DATA)
def test_data_of_another_kind_are_warned_of(bench, fault, tmp_path):
  change, fps, want = DATA[fault]
  store = _write(tmp_path / "store", change(_episodes()), fps=fps)
  report = bench.verify(
    store=store, statistics_path=bench.statistics, num_episodes=3, model=None
  )
  assert report.is_identical, str(report)
  assert re.search(want, "\n".join(report.warnings)), report.warnings


def test_colors_of_one_episode_are_no_swap(bench, tmp_path):
  for num_episodes, want in ((1, False), (2, False), (3, True)):
    episodes = _each(LEFT, lambda x: x[..., ::-1])(_episodes())[:num_episodes]
    store = _write(tmp_path / f"store_{num_episodes}", episodes)
    report = bench.verify(store=store, statistics_path=bench.statistics, model=None)
    assert ("BGR for RGB" in "\n".join(report.warnings)) == want, report.warnings


def test_verify_names_all_paths_that_it_cannot_replay(bench, tmp_path):
  spec = {path: leaf for path, leaf in STORED.items() if path != "camera/right"}
  spec["camera/left"] = _SPEC((8, 8, 3), tf.uint8, "left", is_sequence=True)
  rng = np.random.default_rng(0)
  episodes = [
    {
      **{path: value for path, value in episode.items() if path in spec},
      "camera/left": rng.integers(0, 255, [n, 8, 8, 3], np.uint8),
    }
    for episode, n in zip(_episodes(), LENGTHS, strict=True)
  ]
  store = _write(tmp_path / "store", episodes, spec)
  with pytest.raises(errors.SpecError) as caught:
    bench.verify(store=store)
  text = str(caught.value)
  assert "camera/left: expected (6, 6, 3) uint8, got (8, 8, 3) uint8." in text
  assert "camera/right: expected (6, 6, 3) uint8, got nothing of that name." in text
