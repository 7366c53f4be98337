"""Inference overlapped with execution: exports, lite folders, simulated latency."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  cli,
  episodes,
  errors,
  layers,
  lite,
  policies,
  statistics,
  store,
  training,
  verification,
  zoo,
)
from t2r_seq.lite.overlap import OverlappedPolicy, SimulatedLatency
from t2r_seq.lite.policy_io import Prefix
from tests.zoo.conftest import FEATURES, make_episodes

pytest.importorskip("ai_edge_litert")

PATHS = ("observation.state", "action")
_CHUNKS = {"num_executed": 4, "control_period": 0.1}
_FLOW = {"chunk_size": 8, "model_size": 16, "num_layers": 1, "num_steps": 3}
MODELS = {
  "flow": (zoo.FlowModel, {**_FLOW, "num_heads": 2, "observation_horizon": 2}),
  "trained": (zoo.FlowModel, {**_FLOW, "num_heads": 2, "max_delay": 3}),
  "diffusion": (
    zoo.DiffusionModel,
    {
      "prediction_horizon": 8,
      "action_decoder_cls": functools.partial(
        layers.DiffusionDecoder,
        num_steps=3,
        seed=0,
        create_denoiser_fn=functools.partial(
          layers.DiffusionTransformer, num_layers=1, model_size=8
        ),
      ),
    },
  ),
}


@pytest.fixture(scope="module", name="states_path")
def fixture_states_path(tmp_path_factory):
  path = tmp_path_factory.mktemp("states") / "demos"
  specs = {name: FEATURES[name] for name in PATHS}
  with store.EpisodeStore.create(path, specs, {"fps": 10}) as writer:
    for episode in make_episodes():
      writer.append_episode({name: episode[name] for name in PATHS})
  return path


def make_model(name, states_path):
  found = episodes.open_episodes(states_path)
  statistics_path = states_path.parent / "statistics.json"
  statistics.compute_statistics(states_path, statistics_path)
  model_class, options = MODELS[name]
  tf.keras.utils.set_random_seed(1)
  return model_class(
    signature=zoo.find_signature(found),
    statistics_path=str(statistics_path),
    **{**_CHUNKS, **options},
  )


@pytest.fixture(scope="module", name="predictor", params=MODELS)
def fixture_predictor(request, states_path):
  """The flow's export, and the other models in memory."""
  if request.param == "flow":
    return request.getfixturevalue("exported")[0]
  predictor = policies.CheckpointPredictor(make_model(request.param, states_path))
  predictor.init_randomly()
  return predictor


@pytest.fixture(scope="module", name="exported")
def fixture_exported(states_path, tmp_path_factory):
  """A predictor of the flow's export, and the policy of its lite folder."""
  return export("flow", states_path, tmp_path_factory.mktemp("flow"))


def export(name, states_path, run):
  model = make_model(name, states_path)
  model.build()
  training.export_saved_model(model, str(run / "export"), global_step=0)
  out = str(run / "lite")
  assert cli.main(["export", "--lite", "--overlap", str(run / "export"), out]) == 0
  predictor = policies.ExportedSavedModelPredictor(run / "export", timeout=0)
  predictor.restore()
  return predictor, lite.LitePolicy(out)


def observations(count, seed=5):
  rng = np.random.default_rng(seed)
  return [{"observation.state": row} for row in rng.normal(size=(count, 3)).astype("f")]


def act(policy, count=12):
  policy.reset()
  return [policy.sample_action(seen)[0] for seen in observations(count)]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_zero_latency_equals_the_policy_bit_for_bit(exported, mode):
  for policy, alone in (
    (exported[0], policies.RegressionPolicy(exported[0])),
    (exported[1], exported[1]),
  ):
    planner = SimulatedLatency(0.0)
    overlapped = OverlappedPolicy(policy, mode, planner=planner)
    np.testing.assert_array_equal(act(overlapped), act(alone))


def test_history_sees_each_tick_while_the_network_runs(exported):
  for policy in exported:
    pure = policy.pure
    planner = SimulatedLatency(0.3, 0.0, 10.0)
    overlapped = OverlappedPolicy(policy, "asynchronous", planner=planner)
    seen, state = [], pure.initial_state()
    plan = pure.plan
    pure.plan = lambda *args, plan=plan, seen=seen: (seen.append(args), plan(*args))[1]
    overlapped.reset()
    for number, observation in enumerate(observations(12)):
      batch = {path: value[np.newaxis] for path, value in observation.items()}
      before, count = state, len(seen)
      _, state = pure.step(batch, state, number == 0)
      overlapped.sample_action(observation)
      for arguments in seen[count:]:  # What a step would have seen at this tick.
        for path in before.leaves:
          if path.startswith("history/") or path == "age":
            np.testing.assert_array_equal(arguments[1][path], before[path])
    del pure.plan
    assert len(seen) == 3  # Ticks 0, whose chunk was waited for, 4 and 8.


def test_chunk_repeats_the_frozen_actions(predictor):
  planned, _, chunk = _continue(predictor.pure)
  np.testing.assert_allclose(chunk[0, :2], planned[0, :2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["flow", "diffusion"])
def test_lite_continues_a_chunk_as_the_export_does(
  name, exported, states_path, tmp_path
):
  both = exported if name == "flow" else export(name, states_path, tmp_path)
  (planned, free, chunk), (_, _, other) = (_continue(policy.pure) for policy in both)
  np.testing.assert_allclose(chunk, other, rtol=1e-3, atol=1e-3)
  # Action 2 is planned, and not frozen: the plan pulls it. An untrained diffusion head
  # is pulled anywhere.
  distances = [np.abs(actions - planned)[0, 2] for actions in (chunk, free)]
  assert (distances[0] < distances[1]).all() or name == "diffusion"


def _continue(pure):
  """Returns a plan, the chunk without it, and the chunk that continues it."""
  (seen,) = observations(1)
  batch = {path: value[np.newaxis] for path, value in seen.items()}
  arguments = (batch, pure.initial_state(), True)
  free = pure.plan(*arguments)["inference_output"]
  counts = (np.array([n], np.int32) for n in (2, 5))
  prefix = Prefix(free + np.float32(0.5), *counts)
  return prefix.actions, free, pure.plan(*arguments, prefix)["inference_output"]


def test_chunks_continue_each_other(predictor):
  planner = SimulatedLatency(0.2, 0.0, 10.0)
  mode, pure = predictor.get_policy_record().prefix_mode, predictor.pure
  overlapped = OverlappedPolicy(predictor, mode, planner=planner)
  chunks, plan = [], pure.plan

  def record(*args):
    outputs = plan(*args)
    chunks.append((args[-1], outputs["inference_output"]))
    return outputs

  pure.plan = record
  act(overlapped)
  del pure.plan
  for prefix, chunk in chunks[1:]:
    assert int(prefix.num_frozen[0]) == 2
    np.testing.assert_allclose(
      chunk[0, :2], prefix.actions[0, :2], rtol=1e-5, atol=1e-5
    )


def test_wrong_prefix_is_explained(exported):
  (seen,) = observations(1)
  batch = {path: value[np.newaxis] for path, value in seen.items()}
  for policy in exported:
    state = policy.pure.initial_state()
    for actions, counts in (
      (np.zeros([1, 7, 2], "f"), (2, 5)),
      (np.zeros([1, 8, 2], "f"), (5, 2)),
      (np.zeros([1, 8, 2], "f"), (2, 9)),
    ):
      prefix = Prefix(actions, *(np.array([n], np.int32) for n in counts))
      with pytest.raises(
        errors.SpecError, match=r"plan: prefix: expected actions \(1, "
      ):
        policy.pure.plan(batch, state, True, prefix)


def test_verify_proves_the_windows_of_a_late_network(exported, states_path):
  latency = SimulatedLatency(0.3, 0.1, 10.0)
  for policy in exported:
    report = verification.verify(policy, states_path, latency=latency)
    assert report.is_identical, str(report)
    assert "while others were executed" in " ".join(str(report).split())
  pure, observe = exported[0].pure, exported[0].pure.observe
  # A history that advances only when the network runs.
  pure.observe = lambda seen, state, starts: (
    observe(seen, state, starts) if starts else state
  )
  report = verification.verify(exported[0], states_path, latency=latency)
  del pure.observe
  assert "observation.state differs first, in step 2" in str(report)


USAGE = {
  "evaluate": (("--env", "E", "--num_executed", "0"), "--num_executed"),
  "verify": (("data", "--jitter", "0", "--control_rate", "9"), "--jitter, --control_r"),
}


@pytest.mark.parametrize("command", USAGE)
def test_options_of_a_latency_need_one(command, capsys):
  options, names = USAGE[command]
  assert cli.main([command, "export", *options])
  error = " ".join(capsys.readouterr().err.split())
  assert names in error and "give --latency SECONDS, too." in error


def test_overlap_errors_say_what_to_do(exported, tmp_path):
  predictor, _ = exported
  with pytest.raises(errors.SpecError, match=r"'trained'\. Train the model with max_d"):
    OverlappedPolicy(predictor, "trained")
  folder = str(tmp_path / "plain")
  policies.export_lite(predictor.model_path, folder)
  with pytest.raises(errors.SpecError, match=r"overlap: .*plain: expected.*--overlap"):
    OverlappedPolicy(lite.LitePolicy(folder)).sample_action(observations(1)[0])


def test_trained_delay_is_a_function_of_the_sample_and_has_no_loss(states_path):
  model = make_model("trained", states_path)
  model.build()
  labels = model.get_label_specification("train")
  assert "delay" not in model.preprocessor.get_in_label_specification("train")
  assert labels["delay"].dtype == tf.int32
  chunk = tf.zeros([64, 8, 2])
  features = {"observation.state": tf.zeros([64, 1, 3])}
  given = {"target": chunk, "target_mask": tf.ones([64, 8], tf.bool)}
  _, drawn = model.preprocessor.preprocess(features, given, "train")
  assert {*drawn["delay"].numpy().tolist()} == {0, 1, 2, 3}
  decoder = model.network["decoder"]
  outputs = {"action_embedding": tf.zeros([64, 16]), "delay": drawn["delay"]}
  error = decoder.errors(outputs, chunk, tf.ones_like(chunk, tf.bool), True).numpy()
  is_known = np.arange(8) < drawn["delay"].numpy()[:, np.newaxis]
  assert (error[is_known] == 0).all() and (error[~is_known] > 0).all()


def test_delay_of_a_whole_chunk_is_refused(states_path):
  MODELS["whole"] = (zoo.FlowModel, {**_FLOW, "max_delay": 8})
  with pytest.raises(errors.SpecError, match="max_delay: expected between 1 and 7"):
    make_model("whole", states_path)
  del MODELS["whole"]
