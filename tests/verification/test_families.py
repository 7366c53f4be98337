"""Each family of models: training's windows, both steps and LiteRT are one."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  errors,
  layers,
  lite,
  models,
  policies,
  serving,
  specs,
  training,
  verification,
  windows,
)
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.store import EpisodeStore

pytest.importorskip("ai_edge_litert")
pytest.importorskip("websockets")

_SPEC = specs.ExtendedTensorSpec
_STORED = {
  "image": _SPEC((4, 4, 1), tf.float32, "image", is_sequence=True),
  "state/pos": _SPEC((3,), tf.float32, "pos", is_sequence=True),
  "state/aim": _SPEC((2,), tf.float32, "aim", is_sequence=True),
  "goal": _SPEC((1,), tf.float32, "goal"),
  "pose": _SPEC((2,), tf.float32, "pose", is_sequence=True),
  "grip": _SPEC((), tf.int32, "grip", is_sequence=True),
}
LENGTHS = (6, 1, 4)


class _ChunkModel(models.RegressionModel):
  """Chunks of four actions from two images, positions with gaps, masks, and a goal."""

  sizes = {"image": 32, "state/pos": 6, "goal": 1}  # noqa: RUF012

  def get_feature_specification(self, mode):
    spec = {
      "image": _SPEC((2, 4, 4, 1), tf.float32, "image", time_offsets=(-1, 0)),
      "state/pos": _SPEC((2, 3), tf.float32, "pos", time_offsets=(-3, 0)),
      "goal": _SPEC((1,), tf.float32, "goal"),
    }
    return windows.add_mask_specs(specs.TensorSpecStruct(spec))

  def get_label_specification(self, mode):
    target = _SPEC((4, 2), tf.float32, "target", time_offsets=(0, 1, 2, 3))
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return tf.keras.layers.Dense(8)

  def embed(self, features):
    mask = tf.cast(features.state.pos_mask, tf.float32)
    seen = [tf.reshape(features[path], [-1, n]) for path, n in self.sizes.items()]
    return tf.concat([*seen, mask], axis=-1)

  def a_func(self, features, mode):
    predicted = self.network(self.embed(features))
    return {"inference_output": tf.reshape(predicted, [-1, 4, 2])}


class _TransformerModel(_ChunkModel):
  """A transformer over the steps of the stack."""

  def create_network(self):
    dense = tf.keras.layers.Dense
    return {
      "in": dense(8),
      "body": layers.CausalTransformer(1, 1, 8, 2, mlp_size=8),
      "out": dense(8),
    }

  def a_func(self, features, mode):
    tokens = self.network["in"](features.state.pos)[:, :, tf.newaxis]
    read = self.network["body"](tokens, features.state.pos_mask)
    predicted = self.network["out"](read[:, -1, 0])
    return {"inference_output": tf.reshape(predicted, [-1, 4, 2])}


class _FlowModel(_ChunkModel):
  """A flow decodes the actions."""

  def create_network(self):
    return self.create_action_decoder()

  def a_func(self, features, mode):
    return self.network(self.embed(features), training=mode == "train")


class _LSTMModel(models.RecurrentRegressionModel):
  """An LSTM over stacks at every step, and a goal."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      {
        "state/pos": _SPEC(
          (2, 3), tf.float32, "pos", time_offsets=(-2, 0), is_sequence=True
        ),
        "goal": _SPEC((1,), tf.float32, "goal"),
      }
    )

  def get_label_specification(self, mode):
    target = _SPEC((2,), tf.float32, "pose", is_sequence=True, time_offsets=0)
    return specs.TensorSpecStruct(target=target)

  def get_recurrent_state_specification(self, mode):
    return {name: _SPEC((4,), tf.float32) for name in "hc"}

  def create_network(self):
    lstm = tf.keras.layers.LSTM(4, return_sequences=True, return_state=True)
    return {"lstm": lstm, "out": tf.keras.layers.Dense(2)}

  def recurrent_network_fn(self, features, state, mode):
    pos = features.state.pos
    length = tf.shape(pos)[1]
    goal = tf.repeat(features.goal[:, tf.newaxis], length, axis=1)
    seen = tf.concat([tf.reshape(pos, [tf.shape(pos)[0], length, 6]), goal], axis=-1)
    seen = tf.ensure_shape(seen, [None, None, 7])
    initial = [state["h"], state["c"]]
    out, h, c = self.network["lstm"](seen, initial_state=initial)
    return {"inference_output": self.network["out"](out)}, {"h": h, "c": c}


class _DrawingLSTMModel(_LSTMModel):
  """Draws the pose of each step."""

  def create_network(self):
    return {**super().create_network(), "out": self.create_action_decoder()}

  def recurrent_network_fn(self, features, state, mode):
    predicted, state = super().recurrent_network_fn(features, state, mode)
    return predicted["inference_output"], state


class _CriticModel(models.CriticModel):
  """Values a pose and a grip."""

  def get_state_specification(self):
    aim = _SPEC((2, 2), tf.float32, "aim", time_offsets=(-1, 0))
    return specs.TensorSpecStruct(aim=aim)

  def get_action_specification(self):
    return specs.TensorSpecStruct(
      pose=_SPEC((2,), tf.float32, "pose", time_offsets=0),
      grip=_SPEC((), tf.int32, "grip", time_offsets=0),
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32, "reward"))

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def q_func(self, state, action, mode):
    grip = tf.cast(action.grip, tf.float32)[:, tf.newaxis]
    seen = tf.concat([state.aim[:, 0], action.pose, grip], axis=-1)
    far = tf.reduce_sum(tf.square(state.aim[:, 1] - action.pose), axis=-1)
    return {"q_predicted": self.network(seen)[:, 0] - far}


def _flow(action_shape):
  return layers.FlowMatchingDecoder(action_shape, num_steps=2, seed=3)


# A model, and what of it is compared.
FAMILIES = {
  "chunks": (
    lambda: _ChunkModel(execution=policies.ChunkExecution(3, 0.5), control_period=0.05),
    "the execution of the chunks of inference_output",
  ),
  "flow": (
    lambda: _FlowModel(action_decoder_cls=_flow, padding="zero"),
    "inference_output with the export's network",
  ),
  "lstm": (_LSTMModel, "inference_output with the export's network"),
  "transformer": (_TransformerModel, "inference_output with the export's network"),
  "critic": (
    lambda: _CriticModel(
      search=policies.CrossEntropySearch(2, 8, 2, low=[0, -1, -1], high=[3, 1, 1])
    ),
    "q_predicted with the export's network",
  ),
}  # fmt: skip


class Deployed:
  """A model, its export, and its lite form."""

  def __init__(self, family, folder):
    tf.keras.utils.set_random_seed(1)
    self.model = FAMILIES[family][0]()
    self.model.build()
    self.exports, self.lite = str(folder / "exports"), str(folder / "lite")
    training.export_saved_model(self.model, self.exports, global_step=3)
    policies.export_lite(self.exports, self.lite)
    self.predictor = policies.ExportedSavedModelPredictor(self.exports, timeout=0)
    assert self.predictor.restore()
    self.key = "action_pose" if family == "critic" else "inference_output"

  def of_lite(self, cls=lite.LitePolicy):
    """The lite form, by some policy."""
    return cls(self.lite, self.key)


@pytest.fixture(name="store", scope="module")
def fixture_store(tmp_path_factory):
  """Three episodes."""
  path = str(tmp_path_factory.mktemp("data") / "store")
  rng = np.random.default_rng(0)
  with EpisodeStore.create(path, _STORED) as writer:
    for num_steps in LENGTHS:
      writer.append_episode(
        {
          path: rng.normal(size=(*[num_steps] * spec.is_sequence, *spec.shape)).astype(
            spec.dtype.as_numpy_dtype
          )
          for path, spec in _STORED.items()
        }
      )
  return path


@pytest.fixture(name="chunks", scope="module")
def fixture_chunks(tmp_path_factory):
  """The chunks, for all that is tried on them."""
  return Deployed("chunks", tmp_path_factory.mktemp("chunks"))


@pytest.mark.parametrize("family", FAMILIES)
def test_training_both_steps_and_litert_are_one(family, store, request, tmp_path):
  if family == "chunks":
    deployed = request.getfixturevalue("chunks")
  else:
    deployed = Deployed(family, tmp_path)
  predictor, model = deployed.predictor, deployed.model
  for policy, reference in ((predictor, None), (deployed.of_lite(), predictor)):
    report = verification.verify(policy, store, model, reference=reference)
    assert report.is_identical, str(report)
    assert (report.num_episodes, report.num_steps) == (3, sum(LENGTHS))
    text = " ".join(str(report).split())
    path = "state/aim" if family == "critic" else "state/pos"
    assert re.search(rf"windows of [\w/, ]*{path}, bit for bit", text)
    assert FAMILIES[family][1] in text
    assert ("network inputs" in text) == (policy is predictor)


class _NotReset(lite.LitePolicy):
  """Forgets nothing."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    step = self.pure.step
    self.pure.step = lambda observation, state, is_first: step(observation, state)


class _Scaled(lite.LitePolicy):
  """Half of the action."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    step = self.pure.step

    def scaled(*args):
      outputs, state = step(*args)
      half = outputs["inference_output"] * np.float32(0.5)
      return {**outputs, "inference_output": half}, state

    self.pure.step = scaled


class _ScaledModel(_ChunkModel):
  """Actions of other ranges: a small one, and a large one with an offset."""

  def a_func(self, features, mode):
    chunk = super().a_func(features, mode)["inference_output"]
    return {"inference_output": chunk * [1e-3, 1e3] + [0.0, 50.0]}


@pytest.fixture(name="scaled", scope="module")
def fixture_scaled(tmp_path_factory):
  """Their export and its lite form."""
  folder = tmp_path_factory.mktemp("scaled")
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(FAMILIES, "scaled", (_ScaledModel, ""))
    return Deployed("scaled", folder)


# By how much LiteRT is off, of the range of an element; is that right?
ERRORS = {
  "nothing": ([0, 0], True),
  "a little of the small one": ([3e-6, 0], True),
  "more than that of the small one": ([3e-4, 0], False),
  "a little of the large one": ([0, 1], True),
  "more than that of the large one": ([0, 60], False),
}


@pytest.mark.parametrize("case", ERRORS)
def test_export_and_verify_have_one_tolerance(case, scaled, store, tmp_path):
  error, is_right = ERRORS[case]
  step = lite_policy.LiteModel.step

  def inexact(self, observation, state, is_first=False):
    outputs, state = step(self, observation, state, is_first)
    chunk = outputs["inference_output"] + np.float32(error)
    return {**outputs, "inference_output": chunk}, state

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(lite_policy.LiteModel, "step", inexact)
    report = verification.verify(
      scaled.of_lite(), store, scaled.model, reference=scaled.predictor
    )
    if is_right:
      policies.export_lite(scaled.exports, str(tmp_path / "lite"))
    else:
      with pytest.raises(
        errors.SpecError, match=r"within 0\.5 % of each element's range, got"
      ):
        policies.export_lite(scaled.exports, str(tmp_path / "lite"))
  assert report.is_identical == is_right, str(report)
  text = " ".join(str(report).split())
  assert "within 0.5 % of each element's range" in text
  assert (
    is_right or "of its range where 0.5 % of each element's range is allowed" in text
  )


def test_rounded_weights_are_named_where_outputs_differ(scaled, store, tmp_path):
  policies.export_lite(scaled.exports, str(tmp_path / "int8"), weights="int8")
  policy = lite.LitePolicy(str(tmp_path / "int8"), "inference_output")
  options = {"reference": scaled.predictor}
  report = verification.verify(policy, store, scaled.model, **options)
  is_warned = any("weights are stored as int8" in each for each in report.warnings)
  assert is_warned == (not report.is_identical)
  report = verification.verify(policy, store, scaled.model, tolerance=1.0, **options)
  assert report.is_identical, str(report)


def _turned(observed, begins):
  return {**observed, "state/pos": observed["state/pos"][[2, 0, 1]]}


def _cut(observed, begins):
  return {**observed, "image": observed["image"][:3]}


# How a lite folder is run, what the robot does, and what is found: path, stage, cause.
FAULTS = {
  "a history that is not reset": (_NotReset, None, "image", "window", "was not reset"),
  "another scale": (_Scaled, None, "inference_output", "action", "0.5 times"),
  "elements in another order": (
    lite.LitePolicy, _turned, "state/pos", "window", r"another order: \[2, 0, 1\]",
  ),
  "another size": (lite.LitePolicy, _cut, "image", "observation", r"got \(3, 4, 1\)"),
}  # fmt: skip


def test_sequences_that_are_drawn_are_compared_by_many_draws(store, tmp_path):
  decoder = layers.FlowMatchingDecoder
  model = _DrawingLSTMModel(action_decoder_cls=decoder, padding="repeat")
  model.build()
  training.export_saved_model(model, str(tmp_path), global_step=1)
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path), timeout=0.0)
  predictor.restore()
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)
  assert "single draws of inference_output" in " ".join(report.not_compared)


@pytest.mark.parametrize("is_served", [False, True], ids=["lite", "served"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_lite_folders_and_of_servers_are_found(
  fault, is_served, chunks, store
):
  cls, observe, path, stage, cause = FAULTS[fault]
  policy = chunks.of_lite(cls)
  options = {"reference": chunks.predictor, "observe": observe}
  if is_served:
    with serving.PolicyServer(policy, port=0) as server:
      client = serving.PolicyClient(port=server.port)
      report = verification.verify(client, store, chunks.model, **options)
      client.close()
  else:
    report = verification.verify(policy, store, chunks.model, **options)
  assert not report.is_identical
  first = report.differences[0]
  assert (first.path, first.stage) == (path, stage), str(report)
  assert re.search(cause, " ".join(first.causes)), str(report)


def test_cli_compares_both_with_their_export(chunks, store, capsys):
  with serving.PolicyServer(chunks.predictor, port=0) as server:
    place = f"ws://127.0.0.1:{server.port}"
    for subject in (chunks.lite, place):
      assert cli.main(["verify", subject, store, "--no_model"]) == 0
      printed = " ".join(capsys.readouterr().out.split())
      assert printed.startswith(subject)
      assert "compared: windows of goal, image, state/pos, bit for bit" in printed
      assert "compared: masks of" in printed
      assert "compared: the execution of the chunks of inference_output" in printed
      assert printed.endswith(
        "3 episodes, 11 steps, identical, as far as was compared."
      )
    elsewhere = ["verify", place, store, "--no_model", "--export", chunks.exports]
    assert cli.main(elsewhere) == 0
    # A server of an export tells what its network is given, too.
    client = serving.PolicyClient(port=server.port)
    report = verification.verify(client, store, chunks.model)
    client.close()
    text = " ".join(str(report).split())
    assert report.is_identical and "network inputs goal, image, image_mask," in text
  assert cli.main(["verify", "ws://nowhere", store]) != 0
  assert "expected ws://HOST:PORT, got ws://nowhere" in capsys.readouterr().err


def test_observations_at_another_rate_are_warned_of_once(chunks, caplog):
  """Of the policy class, the lite form, a client, and the server of a foreign one."""
  predictor = policies.RegressionPolicy(chunks.predictor)
  with serving.PolicyServer(chunks.predictor, port=0) as s:
    client, foreign = (serving.PolicyClient(port=s.port) for _ in range(2))
    foreign.metadata["observation"]["timestamp"] = None  # It leaves it to the server.
    for policy in (predictor, chunks.of_lite(), client, foreign):
      assert foreign is policy or policy.control_period == 0.05
      policy.reset()
      for rate, num_warnings in ((20, 0), (60, 1), (60, 1), (20, 1)):
        for t in range(7):
          now = 1e9 + t / rate + 0.003 * (t % 2)
          policy.sample_action(
            {
              "timestamp": now,
              "image": np.zeros([4, 4, 1]),
              "state/pos": np.zeros(3),
              "goal": [1],
            }
          )
        policy.reset()
        found = [x for x in caplog.messages if "as in training" in x]
        assert len(found) == num_warnings, (policy, rate, caplog.messages)
        caplog.clear() if rate == 20 and num_warnings else None
    client.close()
    foreign.close()


RATES = {
  "right": ([0.1] * 9, 0),
  "late once": ([0.1, 0.1, 0.5, 0.1, 0.1, 0.1, 0.1], 0),
  "each twice": ([0.0, 0.1] * 5, 1),
  "turned around": ([-0.1] * 6, 1),
  "right again, then wrong": ([0.05] * 6 + [0.1] * 6 + [0.05] * 6, 2),
}


@pytest.mark.parametrize("case", RATES)
def test_rate_is_the_median_of_some_intervals(case, caplog):
  intervals, want = RATES[case]
  watch = policy_io.RateWatch(0.1)
  for n, time in enumerate(np.cumsum([0.0, *intervals])):
    watch.see([time, 3 + 0.1 * n], [n == 0, n == 0])  # The second one is right.
  assert len(caplog.messages) == want
  with pytest.raises(errors.SpecError, match="step: timestamp: expected seconds"):
    watch.see("noon")
