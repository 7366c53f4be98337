"""n-step transitions of data sets, wherever their flags and last observations stand.

They are compared with transitions that are made and joined one by one.
"""

from __future__ import annotations

import dataclasses
import functools

import h5py
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, records, replay, store, transitions
from t2r_seq.specs import ExtendedTensorSpec as Spec

GAMMA = 0.5
STATES = ("is_terminal", "is_last")
TRANSITIONS = ("terminations", "truncations")


@dataclasses.dataclass
class Episode:
  """The rows of an episode as one format has them.

  Attributes:
    obs, rew, done, truncated: [T].
    flags_at: 0 if flags are those of the row's transition, 1 of the row's state.
    reward_at: the same of the reward.
    final: the observation after the last row, where it is stored.
    next_obs: [T], where it is stored.
  """

  obs: np.ndarray
  rew: np.ndarray
  done: np.ndarray
  truncated: np.ndarray
  flags_at: int = 0
  reward_at: int = 0
  final: float | None = None
  next_obs: np.ndarray | None = None


def one_step(episode: Episode, frames: int):
  """Makes the one-step transitions of an episode, its first stack repeated."""
  obs, num = list(episode.obs), len(episode.obs)
  for t in range(num):
    if max(t + episode.flags_at, t + episode.reward_at) >= num:
      return
    done = bool(episode.done[t + episode.flags_at])
    if episode.next_obs is not None:
      later = episode.next_obs[t]
    elif t + 1 < num:
      later = obs[t + 1]
    elif episode.final is not None:
      later = episode.final
    elif done:
      later = obs[t]  # Its value has the weight 0.
    else:
      return
    shown = [obs[max(t - k, 0)] for k in reversed(range(frames))]
    yield {
      "obs": shown,
      "next_obs": [*shown[1:], later],
      "rew": episode.rew[t + episode.reward_at],
      "done": done,
      "truncated": bool(episode.truncated[t + episode.flags_at]),
    }


def join(episode: Episode, n: int, frames: int = 1):
  """Joins the transitions of an episode one by one."""
  found = list(one_step(episode, frames))
  for t, first in enumerate(found):
    total, steps = 0.0, 0
    for each in found[t : t + n]:
      total += GAMMA**steps * each["rew"]
      steps += 1
      if each["done"] or each["truncated"]:
        break
    yield {
      **{name: each[name] for name in ("next_obs", "done", "truncated")},
      "obs": first["obs"],
      "rew": total,
      "discount": 0.0 if each["done"] else GAMMA**steps,
      "num_steps": steps,
    }


def make_episodes(flags_at: int, ends=("done", "truncated", "cut", "done", "done")):
  """Makes episodes that end in every way, of 1 to 5 rows."""
  for number, (end, num) in enumerate(zip(ends, (5, 4, 3, 2, 1), strict=True)):
    num += flags_at  # A state that no transition begins with.
    is_last = np.arange(num) == num - 1
    obs = 100.0 * (number + 1) + np.arange(num)
    rew = 1.0 + np.arange(num) + 10 * number
    if flags_at:
      rew[-1] = 9999  # It means nothing.
    done, truncated = is_last & (end == "done"), is_last & (end == "truncated")
    if flags_at:
      truncated = is_last  # As RLDS has it.
    yield Episode(obs.astype("f4"), rew.astype("f4"), done, truncated, flags_at)


def flat_spec(flags):
  names = {"obs": tf.float32, "rew": tf.float32, **dict.fromkeys(flags, tf.bool)}
  return {n: Spec((), kind, n, is_sequence=True) for n, kind in names.items()}


def to_columns(episode, flags):
  values = (episode.obs, episode.rew, episode.done, episode.truncated)
  return dict(zip(("obs", "rew", *flags), values, strict=True))


def write_store(path, episodes, flags):
  with store.EpisodeStore.create(path, flat_spec(flags)) as writer:
    for episode in episodes:
      writer.append_episode(to_columns(episode, flags))


def write_rlds(path, episodes):
  spec = records.rlds_specs({**flat_spec(STATES), **flat_spec(("is_first",))})
  columns = [to_columns(episode, STATES) for episode in episodes]
  for each in columns:
    each["is_first"] = np.arange(len(each["obs"])) == 0
  records.write_records(path, spec, columns)


def write_hdf5(path, episodes, *, finals=False, following=False):
  """Writes Minari's layout, or with `following` one as D4RL's, with next rows."""
  with h5py.File(path, "w") as file:
    for number, e in enumerate(episodes):
      group = file.create_group(f"episode_{number}")
      group.attrs.update(id=number, total_steps=len(e.obs))
      last = np.float32([e.obs[-1] + 1])
      group["observations"] = np.concatenate([e.obs, last]) if finals else e.obs
      if following:
        group["next_observations"] = np.concatenate([e.obs[1:], last])
      group["rewards"], group["terminations"] = e.rew, e.done
      group["truncations"] = e.truncated


def with_finals(episodes):
  return [dataclasses.replace(e, final=np.float32(e.obs[-1] + 1)) for e in episodes]


def with_next(episodes):
  return [
    dataclasses.replace(e, next_obs=np.append(e.obs[1:], e.obs[-1] + 1))
    for e in episodes
  ]


def spec_of(obs, rew, flags, *, frames=1, next_name=None, rew_at=0, flags_at=0):
  own = tuple(range(1 - frames, 1)) if frames > 1 else 0
  later = tuple(range(2 - frames, 2)) if frames > 1 else 1
  shape = (frames,) if frames > 1 else ()
  if next_name is not None:
    later = own
  return {
    "obs": Spec(shape, tf.float32, obs, time_offsets=own),
    "next_obs": Spec(shape, tf.float32, next_name or obs, time_offsets=later),
    "rew": Spec((), tf.float32, rew, time_offsets=rew_at),
    "done": Spec((), tf.bool, flags[0], time_offsets=flags_at),
    "truncated": Spec((), tf.bool, flags[1], time_offsets=flags_at),
  }


COMPUTED = {"discount": Spec((), tf.float32), "num_steps": Spec((), tf.int32)}


def read(generator, spec, padding="repeat", mode="eval"):
  """Reads all transitions of one pass, by path, in order; of 'train' one batch."""
  generator.set_feature_specifications({**spec, **COMPUTED})
  generator.set_label_specifications({})
  generator.set_padding(padding)
  dataset = generator.create_dataset(mode)
  batches = [batch for batch, _ in dataset.take(1 if mode == "train" else -1)]
  return {p: np.concatenate([b[p].numpy() for b in batches]) for p in batches[0]}


def assert_joined(got, episodes, n, frames=1):
  want = [each for episode in episodes for each in join(episode, n, frames)]
  for path in ("obs", "next_obs", "rew", "done", "truncated", "discount", "num_steps"):
    values = np.array([each[path] for each in want])
    if path in ("obs", "next_obs") and frames == 1:
      values = values[:, 0]
    np.testing.assert_allclose(got[path], values, rtol=1e-6, err_msg=path)


# Stores: each writes "<folder>/s", and returns the specs to read and the episodes.


def rlds_store(folder, frames):
  episodes = list(make_episodes(1))
  write_store(f"{folder}/s", episodes, STATES)
  return spec_of("obs", "rew", STATES, frames=frames), episodes


def dm_env_store(folder, frames):
  """The reward, too, comes with the state that it led to."""
  episodes = [dataclasses.replace(e, reward_at=1) for e in make_episodes(1)]
  write_store(f"{folder}/s", episodes, ("ended", "cut"))
  spec = spec_of("obs", "rew", ("ended", "cut"), frames=frames, rew_at=1, flags_at=1)
  return spec, episodes


def rows_store(folder, frames):
  """No row follows the last: a truncation there can't be bootstrapped."""
  episodes = list(make_episodes(0))
  write_store(f"{folder}/s", episodes, TRANSITIONS)
  return spec_of("obs", "rew", TRANSITIONS, frames=frames), episodes


def minari_store(folder, frames):
  episodes = with_finals(make_episodes(0))
  write_hdf5(f"{folder}/m.hdf5", episodes, finals=True)
  convert.convert(f"{folder}/m.hdf5", f"{folder}/s")
  return spec_of("observations", "rewards", TRANSITIONS, frames=frames), episodes


def robomimic_store(folder, frames):
  episodes = with_finals(make_episodes(0))
  flat = {**flat_spec(TRANSITIONS), "obs/x": Spec((), tf.float32, is_sequence=True)}
  flat["final_obs/x"] = Spec((), tf.float32)
  del flat["obs"]
  with store.EpisodeStore.create(f"{folder}/s", flat) as writer:
    for e in episodes:
      columns = to_columns(e, TRANSITIONS)
      columns["obs/x"] = columns.pop("obs")
      writer.append_episode({**columns, "final_obs/x": e.final})
  return spec_of("obs/x", "rew", TRANSITIONS, frames=frames), episodes


STORES = {
  "RLDS": rlds_store,
  "dm_env": dm_env_store,
  "rows of transitions": rows_store,
  "Minari": minari_store,
  "robomimic": robomimic_store,
}


def read_store(write, folder, n, frames):
  spec, episodes = write(folder, frames)
  made = data.StoreInputGenerator(f"{folder}/s", 4, n_step=(n, GAMMA))
  got = read(made, spec)
  assert made.num_examples == len(got["rew"])
  return got, episodes


def rlds(folder, n, frames, flags_at=0, index=None):
  episodes = list(make_episodes(1))
  path = f"{folder}/r.tfrecord"
  write_rlds(path, episodes)
  options = {}
  if index is not None:
    records.write_index(path)
    options["index"] = index
  made = data.RldsInputGenerator(path, 4, n_step=(n, GAMMA), **options)
  spec = spec_of("obs", "rew", STATES, frames=frames, flags_at=flags_at)
  return read(made, spec), episodes


def rows_of_records(folder, n, frames, index=None, has_finals=False):
  episodes = list(make_episodes(0))
  columns = [to_columns(e, TRANSITIONS) for e in episodes]
  flat = flat_spec(TRANSITIONS)
  spec = spec_of("obs", "rew", TRANSITIONS, frames=frames)
  if has_finals:
    episodes = with_finals(episodes)
    flat["final_obs"] = spec["final_obs"] = Spec((), tf.float32, "final_obs")
    for e, each in zip(episodes, columns, strict=True):
      each["final_obs"] = e.final
  records.write_records(f"{folder}/r", flat, columns)
  options = {}
  if index is not None:
    records.write_index(f"{folder}/r")
    options["index"] = index
  made = data.DefaultRecordInputGenerator(
    f"{folder}/r", 4, n_step=(n, GAMMA), **options
  )
  got = read(made, spec)
  assert made.count_examples() == len(got["rew"])
  return got, episodes


def python_generator(folder, n, frames):
  episodes = list(make_episodes(0))
  spec = spec_of("obs", "rew", TRANSITIONS, frames=frames)

  def yield_episodes():
    for e in episodes:
      columns = to_columns(e, TRANSITIONS)
      yield {path: columns[each.name] for path, each in spec.items()}, {}

  made = data.GeneratorInputGenerator(
    yield_episodes, 4, yields_episodes=True, n_step=(n, GAMMA)
  )
  return read(made, spec), episodes


def d4rl(folder, n, frames):
  episodes = with_next(make_episodes(0))
  write_hdf5(f"{folder}/d.hdf5", episodes, following=True)
  convert.convert(f"{folder}/d.hdf5", f"{folder}/s")
  made = data.StoreInputGenerator(f"{folder}/s", 4, n_step=(n, GAMMA))
  spec = spec_of("observations", "rewards", TRANSITIONS, next_name="next_observations")
  return read(made, spec), episodes


def lerobot(folder, n, frames):
  pytest.importorskip("pyarrow")
  spec, episodes = rows_store(folder, frames)
  convert.convert(f"{folder}/s", f"{folder}/s.lerobot", fps=10)
  made = data.LeRobotInputGenerator(f"{folder}/s.lerobot", 4, n_step=(n, GAMMA))
  got = read(made, spec)
  assert made.num_examples == len(got["rew"])
  return got, episodes


FORMATS = {
  **{f"a store of {n}": functools.partial(read_store, w) for n, w in STORES.items()},
  "RLDS": rlds,
  "RLDS, flags declared one step later": functools.partial(rlds, flags_at=1),
  "RLDS with an index": functools.partial(rlds, index="require"),
  "records": rows_of_records,
  "records with an index": functools.partial(rows_of_records, index="require"),
  "records with last observations": functools.partial(rows_of_records, has_finals=True),
  "a Python generator": python_generator,
  "D4RL": d4rl,
  "LeRobot": lerobot,
}


# Steps that are joined, and frames of a stack. Single steps once for each engine.
COMBINATIONS = dict.fromkeys(
  ("a store of RLDS", "records", "live"), ((3, 1), (1, 1), (2, 2))
) | {"others": ((3, 1), (2, 2))}


@pytest.mark.parametrize("name", FORMATS)
def test_joined_transitions_of_a_format(name, tmp_path):
  for n, frames in COMBINATIONS.get(name, COMBINATIONS["others"]):
    folder = tmp_path / f"{n}_{frames}"
    folder.mkdir()
    got, episodes = FORMATS[name](folder, n, frames)
    assert_joined(got, episodes, n, 1 if name == "D4RL" else frames)
    assert got["discount"].min() == 0


def sampled(buffer):
  """Samples all items of a queue, in the order of the episodes."""
  count = buffer.counters.num_items
  got = buffer.sample(count)
  order = np.argsort(got["obs"].reshape(count, -1)[:, -1], kind="stable")
  return {path: values[order] for path, values in got.items()}


QUEUE = {"sampler": replay.Fifo(), "max_times_sampled": 1, "timeout": 0}


def from_store(folder, spec, n):
  options = {**QUEUE, "padding": "repeat", "n_step": (n, GAMMA)}
  spec = {**spec, **COMPUTED}
  return replay.ReplayBuffer.from_store(folder, spec, capacity_steps=100, **options)


def live_replay(folder, n, frames):
  """An actor that appends no row for the last observation."""
  episodes = list(make_episodes(0))
  spec = spec_of("obs", "rew", ("done", "truncated"), frames=frames)
  options = {**QUEUE, "padding": "repeat", "n_step": (n, GAMMA)}
  buffer = replay.ReplayBuffer(spec, 100, **options)
  with buffer.writer() as writer:
    for e in episodes:
      columns = to_columns(e, ("done", "truncated"))
      for t in range(len(e.obs)):
        writer.append({path: values[t] for path, values in columns.items()})
      writer.end_episode()
  return buffer, episodes


def replay_of_store(write, folder, n, frames):
  spec, episodes = write(folder, frames)
  return from_store(f"{folder}/s", spec, n), episodes


REPLAYS = {
  **{f"of {n}": functools.partial(replay_of_store, w) for n, w in STORES.items()},
  "live": live_replay,
}


@pytest.mark.parametrize("name", REPLAYS)
def test_joined_transitions_of_a_replay(name, tmp_path):
  for n, frames in COMBINATIONS.get(name, COMBINATIONS["others"]):
    folder = tmp_path / f"{n}_{frames}"
    folder.mkdir()
    buffer, episodes = REPLAYS[name](folder, n, frames)
    with buffer:
      assert_joined(sampled(buffer), episodes, n, frames)


def test_replay_of_states_keeps_their_meaning_in_its_store(tmp_path):
  episodes = list(make_episodes(1))
  write_store(tmp_path / "s", episodes, STATES)
  spec = spec_of("obs", "rew", STATES)
  with from_store(tmp_path / "s", spec, 2) as buffer:
    buffer.to_store(tmp_path / "again")
  assert "done" in store.EpisodeStore(tmp_path / "again").spec
  made = data.StoreInputGenerator(tmp_path / "again", 4, n_step=(2, GAMMA))
  assert_joined(read(made, spec), episodes, 2)


def test_store_with_a_terminal_row_is_not_a_chain_store(tmp_path):
  """Chains have one row more: loading them would lose the terminal transition."""
  buffer, episodes = live_replay(tmp_path, 2, 1)
  with buffer:
    buffer.to_store(tmp_path / "s")
  with pytest.raises(errors.StoreError, match="got an EpisodeStore of episodes"):
    transitions.load_transitions(tmp_path / "s")
  made = data.StoreInputGenerator(tmp_path / "s", 4, n_step=(2, GAMMA))
  got = read(made, spec_of("obs", "rew", ("done", "truncated")))
  assert_joined(got, episodes, 2)


def test_mixture_of_states_and_transitions(tmp_path):
  """The column that a source reads decides, not the specs of the mixture."""
  of_states, of_rows = list(make_episodes(1)), list(make_episodes(0))
  for each in of_rows:
    each.obs += 5000
  write_store(tmp_path / "states", of_states, STATES)
  write_store(tmp_path / "rows", of_rows, ("done", "truncated"))
  sources = {
    name: data.StoreInputGenerator(tmp_path / name, n_step=(3, GAMMA))
    for name in ("states", "rows")
  }
  mixture = data.MixtureInputGenerator(sources, batch_size=4)
  got = read(mixture, spec_of("obs", "rew", STATES))
  assert_joined(got, of_states + of_rows, 3)


def test_conversion_keeps_what_flags_mean(tmp_path):
  episodes = list(make_episodes(1))
  write_rlds(f"{tmp_path}/r.tfrecord", episodes)
  convert.convert(f"{tmp_path}/r.tfrecord", f"{tmp_path}/s")
  convert.convert(f"{tmp_path}/s", f"{tmp_path}/again.tfrecord")
  spec = spec_of("obs", "rew", STATES)
  for name in ("obs", "next_obs", "rew"):  # A conversion makes [1] of a number.
    spec[name] = Spec.from_spec(spec[name], shape=(1,))
  of_store = data.StoreInputGenerator(f"{tmp_path}/s", 4, n_step=(3, GAMMA))
  of_records = data.DefaultRecordInputGenerator(
    f"{tmp_path}/again.tfrecord", 4, n_step=(3, GAMMA)
  )
  named = {
    p: Spec.from_spec(each, name=f"steps/{each.name}") for p, each in spec.items()
  }
  for made, own in ((of_store, spec), (of_records, named)):
    got = {path: np.squeeze(values) for path, values in read(made, own).items()}
    assert_joined(got, episodes, 3)


def test_shards_have_every_transition_once_and_resume(tmp_path):
  episodes = list(make_episodes(0))
  write_store(tmp_path / "s", episodes, TRANSITIONS)
  spec = spec_of("obs", "rew", TRANSITIONS)
  want = [each["obs"][0] for e in episodes for each in join(e, 3)]
  for order in ("global", "quasi_random"):
    shown = []
    for shard in range(2):
      options = {"n_step": (3, GAMMA), "num_shards": 2, "shard_index": shard, "seed": 1}
      loader = data.StoreWindowLoader(
        tmp_path / "s", spec, 2, order, drop_remainder=False, num_epochs=1, **options
      )
      batches = [b["obs"].numpy().tolist() for b in loader.dataset()]
      assert [b["obs"].numpy().tolist() for b in loader.dataset(2)] == batches[2:]
      shown += [obs for batch in batches for obs in batch]
    assert sorted(shown) == sorted(want), order


def test_followed_store_has_its_terminals(tmp_path):
  write_store(tmp_path / "s", list(make_episodes(0)), TRANSITIONS)
  made = data.StoreInputGenerator(tmp_path / "s", 64, n_step=(1, GAMMA), follow=True)
  made.set_feature_specifications({**spec_of("obs", "rew", TRANSITIONS), **COMPUTED})
  made.set_label_specifications({})
  batch = next(iter(made.create_dataset("train")))[0]
  ends = batch["obs"].numpy()[batch["discount"].numpy() == 0]
  assert {104.0, 401.0, 500.0} == set(ends.tolist())


def test_flags_within_an_episode_end_the_joined_steps(tmp_path):
  """An episode that is recorded through resets, or continues after its terminal."""
  t = np.arange(7)
  done, truncated = (t == 2) | (t == 5) | (t == 6), t == 3
  episode = Episode(t.astype("f4"), (t + 1).astype("f4"), done, truncated)
  write_store(tmp_path / "s", [episode], TRANSITIONS)
  made = data.StoreInputGenerator(tmp_path / "s", 4, n_step=(3, GAMMA))
  got = read(made, spec_of("obs", "rew", TRANSITIONS))
  assert_joined(got, [episode], 3)
  assert got["num_steps"].tolist() == [3, 2, 1, 1, 2, 1, 1]


def test_chunks_of_actions_reach_the_terminal(tmp_path):
  episode = next(make_episodes(0))
  write_store(tmp_path / "s", [episode], TRANSITIONS)
  spec = spec_of("obs", "rew", TRANSITIONS)
  spec["act"] = Spec((3,), tf.float32, "rew", time_offsets=(0, 1, 2))
  made = data.StoreInputGenerator(tmp_path / "s", 4, n_step=(3, GAMMA))
  got = read(made, spec)
  assert got["act"][2].tolist() == [3, 4, 5]
  assert got["num_steps"].tolist()[:3] == [3, 3, 3]
  assert got["discount"].tolist()[:3] == [GAMMA**3, GAMMA**3, 0]


def saved_three_step(folder):
  arrays = {
    "obs": np.arange(4, dtype=np.float32),
    "next_obs": np.arange(3, 7, dtype=np.float32),
    "rew": np.ones(4, np.float32),
    "done": np.zeros(4, bool),
    "truncated": np.zeros(4, bool),
  }
  transitions.save_transitions(f"{folder}/s", arrays, n_step=(3, 0.99))
  return f"{folder}/s"


def test_transitions_are_counted_by_an_index_and_their_last_flags(tmp_path):
  columns = [to_columns(e, TRANSITIONS) for e in make_episodes(0)]
  records.write_records(f"{tmp_path}/r", flat_spec(TRANSITIONS), columns)
  records.write_index(f"{tmp_path}/r")
  made = data.DefaultRecordInputGenerator(
    f"{tmp_path}/r", index="require", n_step=(3, GAMMA)
  )
  made.set_feature_specifications(spec_of("obs", "rew", TRANSITIONS))
  made.set_label_specifications({})
  want = sum(len(list(join(e, 3))) for e in make_episodes(0))
  assert made.count_examples() == want


def test_copy_for_lerobot_is_not_joined_again(tmp_path):
  pytest.importorskip("pyarrow")
  options = dict(fps=10)
  convert.convert(saved_three_step(tmp_path), f"{tmp_path}/s.lerobot", **options)
  made = data.LeRobotInputGenerator(f"{tmp_path}/s.lerobot", 1, n_step=(3, 0.99))
  want = (
    r"n_step: expected one-step transitions, got 3-step transitions with gamma 0.99"
  )
  with pytest.raises(errors.SpecError, match=f"LeRobotInputGenerator: .*{want}"):
    read(made, ONE_STEP)


def copied(folder):
  convert.convert(saved_three_step(folder), f"{folder}/z.zarr")
  convert.convert(f"{folder}/z.zarr", f"{folder}/copy")
  return f"{folder}/copy"


ONE_STEP = spec_of("obs", "rew", ("done", "truncated"))
AGAIN = {
  "windows": lambda path: store.EpisodeStore(path).windows(ONE_STEP, n_step=(3, 0.99)),
  "a loader": lambda path: data.StoreWindowLoader(path, ONE_STEP, 1, n_step=(3, 0.99)),
  "a generator": lambda path: read(
    data.StoreInputGenerator(path, 1, n_step=(3, 0.99)), ONE_STEP
  ),
  "one that follows": lambda path: read(
    data.StoreInputGenerator(path, 1, n_step=(3, 0.99), follow=True),
    ONE_STEP,
    mode="train",
  ),
  "a mixture": lambda path: read(
    data.MixtureInputGenerator(
      {"a": data.StoreInputGenerator(path, n_step=(3, 0.99))}, batch_size=1
    ),
    ONE_STEP,
  ),
  "a replay": lambda path: from_store(path, ONE_STEP, 3),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("make_store", [saved_three_step, copied])
def test_joined_transitions_are_not_joined_again(name, make_store, tmp_path):
  path = make_store(tmp_path)
  want = (
    r"n_step: expected one-step transitions, got 3-step transitions with gamma 0.99"
  )
  with pytest.raises(errors.SpecError, match=f"{want}.* read them without n_step"):
    AGAIN[name](path)


def following_stacks():
  spec = spec_of("obs", "rew", TRANSITIONS, frames=2)
  spec["next_obs"] = Spec((2,), tf.float32, "next_obs", time_offsets=(-1, 0))
  return spec


REFUSED = {
  "next rows, read a step too late": (
    {
      **spec_of("obs", "rew", TRANSITIONS),
      "next_obs": Spec((), tf.float32, "next_obs", time_offsets=1),
    },
    r"next_obs: expected the offsets of obs, got offsets 1. next_obs has the next obse",
  ),
  "padded stacks of next rows": (
    following_stacks(),
    r"next_obs: expected the offsets of obs, each one step later, got stacks of "
    r"next_obs, padded. Read obs one step later",
  ),
  "a reward of two steps later": (
    spec_of("obs", "rew", TRANSITIONS, rew_at=2),
    r"rew: expected the anchor's own step, time_offsets=0, got offsets 2. time_off",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
  spec, want = REFUSED[name]
  flat = {**flat_spec(TRANSITIONS), "next_obs": Spec((), tf.float32, is_sequence=True)}
  with store.EpisodeStore.create(tmp_path / "s", flat) as writer:
    e = next(make_episodes(0))
    writer.append_episode({**to_columns(e, TRANSITIONS), "next_obs": e.obs + 1})
  with pytest.raises(errors.SpecError, match=want):
    store.EpisodeStore(tmp_path / "s").windows(
      spec, padding="repeat", n_step=(2, GAMMA)
    )
