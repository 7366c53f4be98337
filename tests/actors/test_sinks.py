"""Where steps go: a replay, a store, records."""

from __future__ import annotations

import itertools
import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import actors, data, errors, records, replay, specs, store
from t2r_seq.actors.rollouts import generate_steps
from t2r_seq.actors.sinks import make_step_to_features

SPEC = specs.TensorSpecStruct(
  [
    (
      "state/pos",
      specs.ExtendedTensorSpec((2, 2), tf.float32, "pos", time_offsets=(-1, 0)),
    ),
    ("reward", specs.ExtendedTensorSpec((1,), tf.float32, "reward", time_offsets=0)),
    ("t", specs.ExtendedTensorSpec((), tf.int64, "t")),
  ]
)


class _Replay:
  """Keeps what its writers are given; has the methods that the sink needs."""

  def __init__(self):
    from t2r_seq import windows

    self.spec_structure, self.flat_spec = SPEC, windows.flat_specs(SPEC)
    self.writers = []

  def writer(self, should_stop=None):
    self.writers.append(_Writer())
    return self.writers[-1]


class _Writer:
  def __init__(self):
    self.calls = []

  def append(self, step):
    self.calls.append(dict(step))

  def end_episode(self):
    self.calls.append("end")

  def close(self):
    self.calls.append("close")


def _steps(env, policy, num_episodes=2, length=3):
  return list(generate_steps(env, policy, num_episodes, seed=1, max_steps=length))


def _fill(sink, steps):
  for env, step in steps:
    sink.add(step, env)


def test_replay_gets_each_step_at_once(env, policy):
  replay = _Replay()
  sink = actors.ReplaySink(replay)
  steps = _steps(env, policy)
  assert len(steps) == 6
  sink.append(steps[0][1])
  (writer,) = replay.writers
  assert list(writer.calls[0]) == ["state/pos", "reward", "t"]
  np.testing.assert_array_equal(
    writer.calls[0]["state/pos"], steps[0][1]["observation"]["state"]["pos"]
  )
  assert writer.calls[0]["reward"].tolist() == [1.0]
  for env_number, step in steps[1:3]:
    sink.append(step, env_number)
  sink.end_episode()
  sink.append(steps[3][1])
  sink.close()
  # A context feature comes with the first step of an episode.
  got = [call if isinstance(call, str) else "t" in call for call in writer.calls]
  assert got == [True, False, False, "end", True, "close"]


def test_each_environment_has_a_writer(env, policy):
  replay = _Replay()
  ((_, step), *_) = _steps(env, policy)
  with actors.ReplaySink(replay) as sink:
    for number in (2, 0, 2):
      sink.append(step, number)
  assert [len(writer.calls) for writer in replay.writers] == [3, 2]
  assert [writer.calls[-1] for writer in replay.writers] == ["close", "close"]


def test_store_gets_whole_episodes(make_env, make_policy, tmp_path):
  path = str(tmp_path / "store")
  steps = _steps(make_env(), make_policy())
  for run in range(2):  # The second goes on in the store of the first.
    with actors.StoreSink(path, lambda: SPEC) as sink:
      _fill(sink, steps)
      sink.append(steps[0][1])
    opened = store.EpisodeStore(path)
    assert len(opened) == 2 * (run + 1)
  assert opened.num_steps == 12
  want = [step["observation"]["state"]["pos"] for _, step in steps]
  np.testing.assert_array_equal(opened.column("state/pos")[:6], want)
  with pytest.raises(errors.SpecError, match="state/pos"):
    actors.StoreSink(
      path, {"state": {"pos": specs.ExtendedTensorSpec((9,), tf.float32, "p")}}
    )


def test_store_gets_videos(tmp_path):
  path, shape = str(tmp_path / "store"), (16, 16, 3)
  image = specs.ExtendedTensorSpec(shape, tf.uint8, is_sequence=True, data_format="mkv")
  how = store.VideoOptions(fps=5)
  frames = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.uint8)
  with actors.StoreSink(path, {"image": image}, videos=how) as sink:
    for number, frame in enumerate(frames):
      ends = {"terminated": number == 2, "truncated": False}
      sink.add({"observation": {"image": frame}, "action": 0, "reward": 0.0, **ends})
  opened = store.EpisodeStore(path)
  assert opened.columns["image"].video.fps == 5
  np.testing.assert_array_equal(opened.episode(0).image, frames)


def test_records_are_written_a_few_a_file(env, policy, tmp_path):
  steps = _steps(env, policy, num_episodes=3)
  path = str(tmp_path / "a" / "train.tfrecord.gz")
  sink = actors.RecordSink(path, SPEC, episodes_per_file=2)
  _fill(sink, steps)
  sink.append(steps[0][1])
  assert len(sink.files) == 1
  sink.close()
  assert [records.inspect_records(file).num_records for file in sink.files] == [2, 1]
  assert sorted(str(p) for p in (tmp_path / "a").iterdir()) == sink.files
  assert all(file.endswith(".tfrecord.gz") for file in sink.files)
  # Another sink of the same name leaves them alone.
  with actors.RecordSink(path, SPEC, episodes_per_file=2) as other:
    _fill(other, steps)
  assert not set(other.files) & set(sink.files)


def test_steps_of_ones_own(env, policy, tmp_path):
  def to_features(step):
    pos = step["observation"]["state"]["pos"]
    return {"state": {"pos": -pos}, "reward": np.float32([7]), "t": np.int64(5)}

  steps = _steps(env, policy, num_episodes=1)
  with actors.StoreSink(
    str(tmp_path / "s"), SPEC, step_to_features_fn=to_features
  ) as sink:
    _fill(sink, steps)
  opened = store.EpisodeStore(str(tmp_path / "s"))
  want = [-step["observation"]["state"]["pos"] for _, step in steps]
  np.testing.assert_array_equal(opened.column("state/pos")[:], want)


def test_step_to_features_names_missing_paths(env, policy):
  ((_, step), *_) = _steps(env, policy)
  spec = {"state": {"poss": SPEC["state/pos"]}, "zeal": SPEC["reward"]}
  with pytest.raises(errors.SpecError, match=r"^step to features: 2 mism") as caught:
    make_step_to_features(spec)(step)
  caught.match(r"state/poss: expected \(2,\) float32, got nothing. Did you mean")


def test_numbers_become_the_specs(env, policy):
  ((_, step), *_) = _steps(env, policy)
  step = {**step, "observation": {"a": 1.5, "b": np.float64([1, 2])}}
  spec = {
    "a": specs.ExtendedTensorSpec((1,), tf.float32, "a", is_sequence=True),
    "b": specs.ExtendedTensorSpec((2,), tf.float32, "b", is_sequence=True),
  }
  got = make_step_to_features(spec)(step)
  assert got["a"].tolist() == [1.5]
  assert (got["a"].dtype, got["b"].dtype) == (np.float32, np.float32)


def test_file_of_no_episodes_is_refused(tmp_path):
  with pytest.raises(ValueError, match="episodes_per_file must be >= 1, got 0"):
    actors.RecordSink(str(tmp_path / "a"), SPEC, episodes_per_file=0)


def test_last_observation_follows(make_env, make_policy, tmp_path):
  steps = _steps(make_env(), make_policy(), num_episodes=1)
  spec = {
    **SPEC,
    "action": specs.ExtendedTensorSpec((2,), tf.float32, "action", is_sequence=True),
    "truncated": specs.ExtendedTensorSpec((), tf.bool, "truncated", is_sequence=True),
  }
  with actors.StoreSink(str(tmp_path / "s"), spec, with_last_observation=True) as sink:
    _fill(sink, steps)
  episode = store.EpisodeStore(str(tmp_path / "s")).episode(0)
  seen = [step["observation"]["state"]["pos"] for _, step in steps]
  want = [*seen, steps[-1][1]["next_observation"]["state"]["pos"]]
  np.testing.assert_array_equal(episode["state/pos"], want)
  assert episode["truncated"].tolist() == [False, False, True, False]
  assert episode["reward"].tolist() == [[1], [1], [1], [0]]
  assert episode["action"][-1].tolist() == [0, 0]


def test_next_observations_are_not_stored_twice(env, policy, tmp_path):
  make = specs.ExtendedTensorSpec
  spec = {
    "state/pos": make((2,), tf.float32, "state/pos", time_offsets=0),
    "next_state/pos": make((2,), tf.float32, "state/pos", time_offsets=1),
  }
  with actors.StoreSink(str(tmp_path / "s"), spec, with_last_observation=True) as sink:
    actors.run_env(env, policy, 1, seed=2, sink=sink)
  assert list(store.EpisodeStore(str(tmp_path / "s")).spec) == ["state/pos"]
  steps = data.StoreInputGenerator(str(tmp_path / "s"), batch_size=1)
  steps.set_feature_specifications(spec)
  steps.set_label_specifications({})
  steps.set_padding("drop")
  windows = [f for f, _ in steps.create_dataset("eval").as_numpy_iterator()]
  for window, after in itertools.pairwise(windows):
    np.testing.assert_array_equal(window["next_state/pos"], after["state/pos"])


def test_sink_keeps_values_whose_name_is_another_path(env, policy, tmp_path):
  make = specs.ExtendedTensorSpec
  spec = {
    "state/pos": make((2,), tf.float32, "aim", time_offsets=0),
    "aim": make((2,), tf.float32, "goal", time_offsets=0),
  }

  def features(step):
    position = step["observation"]["state"]["pos"]
    return {"state/pos": position, "aim": position + 1}

  path = str(tmp_path / "s")
  with actors.StoreSink(path, spec, step_to_features_fn=features) as sink:
    actors.run_env(env, policy, 1, seed=2, sink=sink)
  episode = store.EpisodeStore(path).episode(0)
  np.testing.assert_array_equal(episode["aim"], episode["state/pos"] + 1)


def test_windows_can_be_sampled_while_an_episode_runs(env, policy):
  buffer = replay.ReplayBuffer(
    {"state": {"pos": SPEC["state/pos"]}},
    capacity_steps=100,
    num_writers=2,
    seed=0,
    padding="drop",
  )
  steps = [step for _, step in _steps(env, policy, num_episodes=1)]
  sink = actors.ReplaySink(buffer)
  num_items = []
  for step in steps:
    sink.append(step)
    num_items.append(buffer.counters.num_items)
  # A window needs two steps.
  assert num_items == [0, 1, 2]
  # Another environment's episode is another one.
  sink.append(steps[0], env=1)
  assert buffer.counters.num_items == 2
  batch = next(iter(buffer.dataset(8)))
  pairs = {tuple(map(tuple, window)) for window in batch["state/pos"].numpy()}
  seen = [tuple(step["observation"]["state"]["pos"]) for step in steps]
  assert pairs == {(seen[0], seen[1]), (seen[1], seen[2])}
  sink.close()
  buffer.close()


def test_next_observations_of_the_last_action(env, policy):
  spec = {
    "obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=0),
    "next_obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=1),
    "terminated": specs.ExtendedTensorSpec((), tf.bool, "terminated", time_offsets=0),
  }

  def to_features(step):
    return {
      "obs": step["observation"]["state"]["pos"],
      "terminated": np.bool_(step["terminated"]),
    }

  with (
    replay.ReplayBuffer(spec, 100, seed=0, padding=("repeat", "drop")) as buffer,
    actors.ReplaySink(buffer, to_features) as sink,
  ):
    metrics = actors.run_env(env, policy, 1, seed=2, sink=sink)
    assert buffer.counters.num_items == metrics["num_steps"]
    batch = next(iter(buffer.dataset(64)))
    last = batch["terminated"].numpy()
    assert last.any()
    # The episode ends where the first coordinate exceeds 3.
    assert (batch["next_obs"].numpy()[last, 0] > 3).all()
    assert (batch["next_obs"].numpy()[~last, 0] < 3).all()


def test_actions_of_later_steps_are_not_made_up_by_a_last_observation():
  """Of a chunk there is nothing beyond the last action, whatever else looks ahead."""
  chunk = specs.ExtendedTensorSpec((2, 2), tf.float32, "action", time_offsets=(0, 1))
  ahead = {
    "obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=0),
    "next_obs": specs.ExtendedTensorSpec((2,), tf.float32, "obs", time_offsets=1),
  }
  for spec, padding, want in (
    (ahead, "drop", True),
    (ahead, ("repeat", "drop"), True),
    (ahead, "repeat", False),
    ({"obs": ahead["obs"]}, "drop", False),
    ({**ahead, "action": chunk}, "drop", False),
  ):
    buffer = replay.ReplayBuffer(spec, capacity_steps=10, padding=padding)
    assert actors.ReplaySink(buffer).with_last_observation is want


@gin.configurable(module="test_sinks")
def walk_specs():
  return SPEC


IN_REPLAY = """
  collect_eval_loop.sink = @ReplaySink()
  ReplaySink.replay = @live/gin.singleton()
  live/gin.singleton.constructor = @ReplayBuffer
  ReplayBuffer.spec_structure = @test_sinks.walk_specs()
  ReplayBuffer.capacity_steps = 100
  ReplayBuffer.padding = 'repeat'
"""
IN_STORE = """
  collect_eval_loop.sink = @StoreSink()
  StoreSink.path = 'walks'
  StoreSink.spec = @test_sinks.walk_specs
"""
IN_RECORDS = """
  collect_eval_loop.sink = @RecordSink()
  RecordSink.output_path = 'walks/walk.tfrecord'
  RecordSink.spec = @test_sinks.walk_specs
  RecordSink.episodes_per_file = 3
"""


def _num_records():
  files = sorted(pathlib.Path("walks").iterdir())
  return [records.inspect_records(str(path)).num_records for path in files]


def _num_sampled_from():
  return gin.config.singleton_value("live").counters.num_items


BY_GIN = {
  "replay": (IN_REPLAY, _num_sampled_from, lambda result: result["num_steps"]),
  "store": (
    IN_STORE,
    lambda: store.EpisodeStore("walks").num_steps,
    lambda result: result["num_steps"],
  ),
  "records": (IN_RECORDS, _num_records, lambda result: [3, 1]),
}


@pytest.mark.parametrize("name", BY_GIN)
def test_gin_configures_the_sink(name, make_env, make_policy, tmp_path, monkeypatch):
  config, get, want = BY_GIN[name]
  monkeypatch.chdir(tmp_path)
  gin.parse_config(config)
  result = actors.collect_eval_loop(
    make_env, policy_class=make_policy, num_collect=4, seed=1
  )
  assert result["num_episodes"] == 4
  assert get() == want(result)


def test_learner_does_not_wait_for_an_actor_that_failed(make_env):
  spec = specs.TensorSpecStruct(
    {"reward": specs.ExtendedTensorSpec((), tf.float32, "reward", time_offsets=0)}
  )
  live = replay.ReplayBuffer(spec, capacity_steps=20, timeout=30.0)

  class Broken:
    def reset(self):
      raise OSError("the camera is gone")

  with pytest.raises(OSError, match="camera"):
    actors.collect_episodes(
      env=make_env(), policy=Broken(), num_episodes=1, sink=actors.ReplaySink(live)
    )
  want = "a writer that appends steps, got none: OSError: the camera is gone"
  with pytest.raises(errors.ReplayError, match=f"{want}.* 0 of 1 items are there"):
    live.sample(2)
  with live.writer() as writer:  # Somebody again.
    writer.append({"reward": np.float32(1)})
    assert live.sample(2)["reward"].tolist() == [1, 1]
