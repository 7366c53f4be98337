"""Configures ready policies, and trains them from data sets, without user code."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, statistics, training, windows
from t2r_seq.episodes import make_splits, open_episodes
from t2r_seq.episodes.rates import control_period
from t2r_seq.episodes.registry import find_format, get_format
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.statistics.statistics import Statistics
from t2r_seq.training.arguments import DEFAULT_BINDINGS
from t2r_seq.zoo import environment, registry
from t2r_seq.zoo.embodiments import Embodiment, design_embodiments, shared_signature
from t2r_seq.zoo.evaluate import find_texts
from t2r_seq.zoo.imitation import robot_conventions
from t2r_seq.zoo.signature import Signature, check_needs, find_signature

STATISTICS = "statistics.json"
_SPLIT_FILES = {"train": "train_episodes.txt", "eval": "eval_episodes.txt"}
_EVAL_SPLITS = ("eval", "val", "valid", "validation", "test")
_EVAL_SHARE = 0.1
# Maximum fraction of a run in which the learning rate warms up.
_WARMUP_SHARE = 0.1

Datasets = str | os.PathLike[str] | Sequence[str]


def train_policy(
  policy: str,
  dataset: Datasets,
  model_dir: str | os.PathLike[str],
  size: str = "base",
  *,
  gin_configs: Sequence[str] = (),
  gin_bindings: Sequence[str] = (),
  open_options: Mapping[str, Any] | None = None,
  env_id: str | Mapping[str, str] | None = None,
  env_options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
  """Trains, evaluates and exports a ready policy, or resumes its run.

  Replaces gin's config by the policy's; see `configure_policy`.

  Args:
    policy: name of a policy, such as 'mlp'; see `registry.policies`.
    dataset: path of a data set of any format; or paths, each of a robot's, to train one
      policy for several robots.
    model_dir: folder of the run.
    size: 'base', as in the paper, or 'tiny', for a laptop's CPU.
    gin_configs: gin files whose bindings override the policy's.
    gin_bindings: bindings that override those of the files.
    open_options: options of `episodes.open_episodes`.
    env_id: a Gymnasium environment in which evaluations run the policy; for several
      robots, environments by name of the robot. The best export has the highest success
      rate, or return if the environment reports no success. None: the lowest eval loss.
    env_options: `observe`, `task` and `options` of `evaluate_export`.
  Returns:
    The result of `training.train_eval_model`.
  Raises:
    SpecError: the data set is missing or does not fit the policy or the environment, or
      an option is invalid.
    ImportError: a package of the format or of the environment is missing.
    OSError: a file cannot be read or written.
    training.checkpoints.NanLossError: a loss or gradient was not finite.
  """
  configure_policy(
    policy,
    dataset,
    model_dir,
    size,
    gin_configs=gin_configs,
    gin_bindings=gin_bindings,
    open_options=open_options,
    env_id=env_id,
    env_options=env_options,
  )
  return training.train_eval_model()


def configure_policy(
  policy: str,
  dataset: Datasets | None,
  model_dir: str | os.PathLike[str],
  size: str = "base",
  *,
  gin_configs: Sequence[str] = (),
  gin_bindings: Sequence[str] = (),
  open_options: Mapping[str, Any] | None = None,
  env_id: str | Mapping[str, str] | None = None,
  env_options: Mapping[str, Any] | None = None,
  is_dry: bool = False,
) -> str:
  """Configures gin for a run: the policy's file, the data set, the user's bindings.

  Writes lists of the training and eval episodes, and statistics, to `model_dir`, unless
  they exist.

  Args:
    policy, model_dir, size, gin_configs, gin_bindings: see `train_policy`.
    open_options, env_id, env_options: see `train_policy`.
    dataset: see `train_policy`; None leaves out parameters that follow from it.
    is_dry: whether to write no files.
  Returns:
    The config as text, with its comments. Bindings that follow from the data set and
    the folder are commented out.
  Raises:
    SpecError, ImportError, OSError: see `train_policy`.
  """
  chosen = _choose(policy, registry.IMITATION)
  text = registry.config_text(chosen.config_file(size))
  _parse_config(text, gin_configs, gin_bindings)
  bindings = [f"train_eval_model.model_dir = {os.fspath(model_dir)!r}"]
  if dataset is not None:
    run_options = os.fspath(model_dir), open_options, is_dry
    if isinstance(dataset, (str, os.PathLike)):
      dataset = [os.fspath(dataset)]
    paths = [*dataset]
    run: _Run | _Robots = (
      _Run(chosen, paths[0], *run_options)
      if len(paths) == 1
      else _Robots(chosen, paths, *run_options)
    )
    if env_id is not None:
      bindings += run.environment_bindings(env_id, **(env_options or {}))
    bindings += run.bindings()
  bindings += _device_bindings() + _schedule_bindings()
  gin.parse_config(bindings)
  _parse_user(gin_configs, gin_bindings)
  with gin.unlock_config():  # Checks macros and references without a lock at the end.
    gin.finalize()
  comments = [f"# {line}" for line in bindings]
  return _join_configs(text, comments, gin_configs, gin_bindings)


def policy_statistics(
  policy: str,
  dataset: str | os.PathLike[str],
  output: str | os.PathLike[str],
  size: str = "base",
  *,
  episodes: Any = None,
  gin_configs: Sequence[str] = (),
  gin_bindings: Sequence[str] = (),
  open_options: Mapping[str, Any] | None = None,
) -> Statistics:
  """Writes the statistics of states and actions before `Normalize`; returns them.

  If the policy changes conventions, e.g. to relative actions, the statistics are of the
  changed values in the windows that training cuts.

  Args:
    policy, size, gin_configs, gin_bindings, open_options: see `train_policy`.
    dataset: path of a data set of any format.
    output: JSON file, for `ImitationModel.statistics_path`.
    episodes: numbers of the only episodes to count, or a file of them; None for all, or
      those of the option `split`.
  Raises:
    SpecError, ImportError, OSError: see `train_policy`.
  """
  path, options = os.fspath(dataset), dict(open_options or {})
  configure_policy(
    policy,
    path,
    "",
    size,
    gin_configs=gin_configs,
    gin_bindings=gin_bindings,
    open_options=options,
    is_dry=True,
  )
  run = _Run(_choose(policy, registry.IMITATION), path, "", options, True)
  return run.write_statistics(os.fspath(output), episodes)


def configure_online(
  policy: str,
  env: str | None,
  model_dir: str | os.PathLike[str],
  size: str = "base",
  *,
  env_options: Mapping[str, Any] | None = None,
  gin_configs: Sequence[str] = (),
  gin_bindings: Sequence[str] = (),
) -> str:
  """Configures gin for `train_online`, with a policy that learns in an environment.

  Args:
    policy: name of the policy, such as 'dqn'; see `registry.policies`.
    env: id of a Gymnasium environment; None leaves it to the bindings.
    model_dir: folder of the run.
    size: 'base', as published, or 'tiny', for a laptop's CPU.
    env_options: options of `gymnasium.make`.
    gin_configs: gin files whose bindings override the policy's.
    gin_bindings: bindings that override those of the files.
  Returns:
    The config as text, complete, with its comments.
  Raises:
    SpecError: an unknown policy or size, or a policy that learns from a data set.
    OSError: a gin file cannot be read.
  """
  chosen = _choose(policy, registry.ONLINE)
  text = registry.config_text(chosen.config_file(size))
  bindings = [f"train_online.model_dir = {os.fspath(model_dir)!r}"]
  bindings += [] if env is None else [f"ENV = {env!r}"]
  if env_options:
    bindings.append(f"make_environment.options = {dict(env_options)!r}")
  _parse_config("\n".join([text, *bindings]), gin_configs, gin_bindings)
  with gin.unlock_config():  # Checks macros and references without a lock at the end.
    gin.finalize()
  return _join_configs(text, bindings, gin_configs, gin_bindings)


def _choose(policy: str, kind: str) -> registry.ReadyPolicy:
  """Returns a policy by name; raises SpecError if it is not of `kind`."""
  chosen = registry.find_policy(policy)
  if chosen.kind != kind:
    expected, got = "a data set: --dataset PATH", "an environment: --env NAME"
    if chosen.kind == registry.ONLINE:
      expected, got = got, expected
    raise errors.SpecError(f"train: {policy}: expected {expected}, got {got}.")
  return chosen


def _join_configs(
  text: str,
  bindings: Sequence[str],
  gin_configs: Sequence[str],
  gin_bindings: Sequence[str],
) -> str:
  files = [_read(path) for path in gin_configs]
  title = "# What follows from the data set or environment, and the folder of the run:"
  return "\n".join([text, "", title, *bindings, *files, *gin_bindings])


def _parse_config(
  text: str, gin_configs: Sequence[str], gin_bindings: Sequence[str]
) -> None:
  """Replaces gin's config, and marks values that the user does not set as defaults."""
  gin.clear_config()
  _parse_user(gin_configs, gin_bindings)
  user_lines = _config_lines()
  gin.clear_config()
  gin.parse_config(text)
  lines = _config_lines()
  changed = {name for name, line in user_lines.items() if line != lines.get(name)}
  defaults = sorted(lines.keys() - changed)
  _parse_user(gin_configs, gin_bindings)
  gin.parse_config(f"{DEFAULT_BINDINGS} = {defaults!r}")


def _config_lines() -> dict[str, str]:
  lines = gin.config_str(max_line_length=10_000).splitlines()
  return {line.partition(" =")[0]: line for line in lines if " =" in line}


def _parse_user(gin_configs: Sequence[str], gin_bindings: Sequence[str]) -> None:
  for path in gin_configs:
    gin.parse_config_file(path)
  gin.parse_config(list(gin_bindings))


def _read(path: str) -> str:
  with open(path, encoding="utf-8") as file:
    return file.read()


class _Run:
  """The bindings of a run that follow from its data set."""

  def __init__(
    self,
    policy: registry.ReadyPolicy,
    dataset: str,
    model_dir: str,
    open_options: Mapping[str, Any] | None,
    is_dry: bool,
  ) -> None:
    options = dict(open_options or {})
    self._policy, self._dataset, self._model_dir = policy, dataset, model_dir
    self._split = options.pop("split", None)
    self._format = options.pop("format", None) or find_format(dataset).name
    if "index" in get_format(self._format).options:
      options.setdefault("index", "auto")
    self._options, self._is_dry = options, is_dry
    self._episodes = open_episodes(dataset, self._format, **options)
    self._signature = find_signature(self._episodes)
    needs = policy.model_cls.needs
    check_needs(self._signature, self._episodes, policy.name, needs)
    _say(f"{policy.name}: {self._signature.describe('language' in needs)}")

  def bindings(self) -> list[str]:
    """Returns the bindings of the data set; writes splits and statistics."""
    splits = self._split_episodes()
    return [
      f"DATASET = {self._dataset!r}",
      f"EpisodesInputGenerator.format = {self._format!r}",
      *(
        [f"EpisodesInputGenerator.open_options = {self._options!r}"]
        if self._options
        else []
      ),
      *_signature_bindings(self._signature),
      *self._split_bindings(splits),
      *_small_batch(self._count_windows(splits.get("train"))),
      f"STATISTICS = {self._statistics(splits.get('train'))!r}",
    ]

  @property
  def signature(self) -> Signature:
    """The signature of the data set."""
    return self._signature

  @property
  def robot(self) -> tuple[str | None, float | None]:
    """The robot's type and control period, if the data set has them."""
    metadata = self._episodes.metadata
    lerobot = metadata.get("lerobot")
    named = lerobot.get("robot_type") if isinstance(lerobot, Mapping) else None
    named = metadata.get("robot", named)
    return named if isinstance(named, str) else None, control_period(metadata)

  def check_random_access(self) -> None:
    """Raises SpecError if the data set can only be read in order."""
    if self._episodes.lengths is None:
      raise errors.SpecError(
        f"train: {self._dataset}: expected a data set with random access, for one of "
        "several robots, got one that is read in order. Write an index of TFRecord "
        "files, t2r_seq index, or convert it to a store: t2r_seq convert."
      )

  def source_bindings(self, scope: str) -> tuple[list[str], bool, int]:
    """Returns the bindings of one source of a mixture, in a scope; writes the splits.

    Returns:
      (bindings, whether episodes are held out, windows to train on).
    """
    splits = self._split_episodes()
    name = f"{scope}/EpisodesInputGenerator"
    bindings = [
      f"{name}.dataset = {self._dataset!r}",
      f"{name}.format = {self._format!r}",
    ]
    if self._options:
      bindings.append(f"{name}.open_options = {self._options!r}")
    for split in splits:
      file = self._path(_SPLIT_FILES[split])
      bindings.append(f"{scope}/{split}/EpisodesInputGenerator.episodes = {file!r}")
    return bindings, "eval" in splits, self._count_windows(splits.get("train")) or 0

  def environment_bindings(
    self, env_id: str | Mapping[str, str], **options: Any
  ) -> list[str]:
    """Checks the environment, and returns the bindings of closed-loop evaluation."""
    if not isinstance(env_id, str):
      raise errors.SpecError(
        f"train: --env: expected one environment for one robot, got {dict(env_id)}."
      )
    found, has_success = self.policy_environment_bindings(env_id, **options)
    return [*_closed_loop_bindings("@policy_environment()", has_success), *found]

  def policy_environment_bindings(
    self,
    env_id: str,
    scope: str = "",
    observe: Mapping[str, str] | None = None,
    task: str | None = None,
    options: Mapping[str, Any] | None = None,
  ) -> tuple[list[str], bool]:
    """Checks an environment; returns its bindings, and whether it reports success."""
    signature = self._signature
    expected = {p: tf.TensorSpec(s, tf.float32) for p, s in signature.states.items()}
    expected |= {p: tf.TensorSpec(s, tf.uint8) for p, s in signature.cameras.items()}
    if "language" in self._policy.model_cls.needs:
      expected[str(signature.language)] = tf.TensorSpec((), tf.string)
    is_rendered = environment.RENDER in (observe or {})
    env = environment.make_environment(env_id, options, is_rendered)
    try:
      space = env.observation_space
      matching = environment.match_observations(env_id, space, expected, observe)
      environment.check_action(env_id, env.action_space, (signature.action_size,))
      texts = find_texts(env, env_id, expected, task)
      has_success = environment.tells_success(env)
    finally:
      env.close()
    arguments = {
      "env_id": env_id,
      "matching": matching,
      "sizes": dict(signature.cameras),
      "texts": texts,
      "options": dict(options or {}),
    }
    name = f"{scope}/policy_environment" if scope else "policy_environment"
    return [
      f"{name}.{key} = {value!r}" for key, value in arguments.items()
    ], has_success

  def _split_episodes(self) -> dict[str, np.ndarray]:
    """Returns the episodes of 'train' and 'eval', as before if the run resumes."""
    lengths = self._episodes.lengths
    if lengths is None:
      _say(
        f"{self._dataset}: no episodes are held out, as it can be read in order only. "
        "t2r_seq index, or convert, makes it readable in any order."
      )
      return {}
    names = {split: self._path(file) for split, file in _SPLIT_FILES.items()}
    if all(map(os.path.exists, names.values())):
      splits = {
        split: np.loadtxt(name, np.int64, ndmin=1) for split, name in names.items()
      }
      last = max(numbers.max(initial=-1) for numbers in splits.values())
      if last >= len(lengths):
        raise errors.SpecError(
          f"train: {self._dataset}: expected the data set with which {self._model_dir} "
          f"began, which has an episode {last}, got one of {len(lengths)} "
          "episodes. Use another --model_dir."
        )
      return splits
    splits = self._choose_splits()
    if not self._is_dry:
      os.makedirs(self._model_dir, exist_ok=True)
      for split, numbers in splits.items():
        np.savetxt(names[split], numbers, "%d")
    return splits

  def _choose_splits(self) -> dict[str, np.ndarray]:
    episodes = self._episodes
    all_splits = {
      name: np.asarray([*episodes_of_split])
      for name, episodes_of_split in episodes.splits.items()
    }
    if self._split is not None and self._split not in all_splits:
      raise errors.SpecError(
        f"train: {self._dataset}: split: expected one of {errors.listing(all_splits)}, "
        f"got '{self._split}'.{errors.nearest(self._split, all_splits)}"
      )
    name = self._split or "train"
    train = all_splits.get(name, np.arange(episodes.num_episodes or 0))
    held_out = next(
      (all_splits[n] for n in _EVAL_SPLITS if n in all_splits and n != name), None
    )
    if held_out is not None:
      return {"train": np.setdiff1d(train, held_out), "eval": held_out}
    count = len(train)
    if count < 2:
      _say(f"{self._dataset}: no episode is held out for evaluation: it has only one.")
      return {"train": train}
    share = max(_EVAL_SHARE, 1 / count)
    parts = make_splits({"train": 1 - share, "eval": share}, count)
    return {split: np.sort(train[numbers]) for split, numbers in parts.items()}

  def _split_bindings(self, splits: Mapping[str, np.ndarray]) -> list[str]:
    bindings = [
      f"{split.upper()}_EPISODES = "
      f"{self._path(_SPLIT_FILES[split])!r}" if split in splits else
      f"{split.upper()}_EPISODES = None"
      for split in _SPLIT_FILES
    ]  # fmt: skip
    if "eval" not in splits:
      bindings.append("train_eval_model.input_generator_eval = None")
    return bindings

  def _count_windows(self, train: np.ndarray | None) -> int | None:
    """Returns the number of training windows; None if lengths are unknown."""
    lengths = self._episodes.lengths
    if train is None or lengths is None:
      return None
    length = _query("%SEQUENCE_LENGTH") or 1
    return int(np.maximum(np.asarray(lengths)[train] - length + 1, 0).sum())

  @property
  def statistics_path(self) -> str:
    """The file for statistics of the training episodes."""
    return self._path(STATISTICS)

  def _statistics(self, train: np.ndarray | None, model: Any = None) -> str:
    """Returns the statistics file of the training episodes; writes it if missing."""
    path = self.statistics_path
    if not self._is_dry and not os.path.exists(path):
      os.makedirs(self._model_dir, exist_ok=True)
      self.write_statistics(path, train, model)
      _say(f"statistics of the training episodes: {path}")
    return path

  def write_robot_statistics(self, model: Any) -> None:
    """Writes the robot's statistics, by its own model, if they are missing."""
    self._statistics(self._split_episodes().get("train"), model)

  def write_statistics(self, path: str, numbers: Any, model: Any = None) -> Statistics:
    """Writes the statistics of states and actions before `Normalize`.

    Args:
      path: path of the file.
      numbers: numbers of the episodes, or a file of them; None for all of the split.
      model: the model with the stages before `Normalize`; None: gin's config makes it.
    """
    signature = self._signature
    vector_paths = (*signature.states, signature.action)
    opened = open_episodes(
      self._dataset,
      self._format,
      episodes=numbers,
      split=self._split if numbers is None else None,
      drop=[other for other in self._episodes.spec if other not in vector_paths],
      **self._options,
    )
    casts = {path: tf.float32 for path in signature.stored_dtypes}
    if _query(f"{self._policy.model_name}.conventions"):
      # Statistics are of what the network gets: relative actions, other rotations.
      if model is None:
        with gin.unlock_config():
          gin.parse_config([*_signature_bindings(signature), f"STATISTICS = {path!r}"])
        model = self._policy.model_cls()
      stage = model.statistics_preprocessor()
      if stage is not None:
        cut = windows.Cut(_query("%SEQUENCE_LENGTH"), padding=model.padding)
        measured = statistics.compute_statistics(opened, transform=stage, cut=cut)
        measured.save(path)
        return measured
    measured = statistics.compute_statistics(opened.cast(casts) if casts else opened)
    # The model's specs have the paths as names, independent of the format's names.
    named = {
      p: dataclasses.replace(each, spec=ExtendedTensorSpec.from_spec(each.spec, name=p))
      for p, each in measured.paths.items()
    }
    measured = dataclasses.replace(measured, paths=named)
    measured.save(path)
    return measured

  def _path(self, name: str) -> str:
    return os.path.join(self._model_dir, name)


def _signature_bindings(signature: Signature, scope: str = "") -> list[str]:
  prefix = f"{scope}/" if scope else ""
  fields = vars(signature).items()
  return [f"{prefix}Signature.{name} = {value!r}" for name, value in fields]


def _small_batch(num_windows: int | None) -> list[str]:
  """Returns the binding of a smaller batch, if the data has less than one batch."""
  batch = _query("%BATCH_SIZE")
  if num_windows is None or not isinstance(batch, int) or batch <= num_windows:
    return []
  size = max(num_windows, 1)
  _say(f"batches of {size}, not {batch}: the data has {num_windows} windows.")
  return [f"BATCH_SIZE = {size}"]


class _Robots:
  """The data sets of several robots, and the bindings that follow from them."""

  def __init__(
    self,
    policy: registry.ReadyPolicy,
    datasets: Sequence[str],
    model_dir: str,
    *given: Any,
  ) -> None:
    self._policy = policy
    names = _source_names(datasets)
    self._runs = {
      name: _Run(policy, path, os.path.join(model_dir, "robots", name), *given)
      for name, path in zip(names, datasets, strict=True)
    }
    self._robots = self._name_robots()
    for run in self._runs.values():
      run.check_random_access()

  def _name_robots(self) -> dict[str, str]:
    """Returns the robot of each source: its type, if all of the type are alike."""
    signatures: dict[str | None, list[Signature]] = {}
    for run in self._runs.values():
      signatures.setdefault(run.robot[0], []).append(run.signature)
    shared = {
      named
      for named, signature in signatures.items()
      if named and all(each == signature[0] for each in signature)
    }
    return {
      name: _scope(run.robot[0]) if run.robot[0] in shared else name
      for name, run in self._runs.items()
    }

  def environment_bindings(
    self,
    env_id: str | Mapping[str, str],
    observe: Mapping[str, str] | None = None,
    **options: Any,
  ) -> list[str]:
    """Checks the environments of robots; returns the bindings of evaluation."""
    # Sources of one robot share a signature: any of their runs will do.
    runs = {self._robots[name]: run for name, run in self._runs.items()}
    # An id alone names no robot, and is refused below.
    envs = {env_id: env_id} if isinstance(env_id, str) else env_id
    if unknown := [name for name in envs if name not in runs]:
      raise errors.SpecError(
        "train: --env: expected the name of a robot and its environment, NAME=ID, "
        f"with NAME one of {errors.listing(runs)}, got '{unknown[0]}'."
        f"{errors.nearest(unknown[0], runs)}"
      )
    found: list[str] = []
    successes = []
    for name, each in envs.items():
      signature = runs[name].signature
      seen = {
        key: path
        for key, path in (observe or {}).items()
        if path in (*signature.states, *signature.cameras)
      }
      bindings, has_success = runs[name].policy_environment_bindings(
        each, name, seen, **options
      )
      found += bindings
      successes.append(has_success)
    places = ", ".join(f"{name!r}: @{name}/policy_environment()" for name in envs)
    return [*_closed_loop_bindings(f"{{{places}}}", all(successes)), *found]

  def bindings(self) -> list[str]:
    """Returns the bindings of the mixture; writes splits and statistics."""
    robots = self._design()
    sizes = {
      n: {p: size for p, (_, size) in robot_conventions(e, self._changes).items()}
      for n, e in robots.items()
    }
    signature = shared_signature(robots, sizes)
    bindings, num_windows, held_out = [], 0, []
    for name, run in self._runs.items():
      lines, has_eval, count = run.source_bindings(name)
      bindings += lines
      held_out += [name] if has_eval else []
      num_windows += count
      bindings += _robot_bindings(robots[self._robots[name]], name)
    bindings += _signature_bindings(dataclasses.replace(signature, embodiments={}))
    bindings.append(f"Signature.embodiments = {_references(self._runs)}")
    bindings += self._mixture("train", [*self._runs])
    bindings.append("train/MixtureInputGenerator.seed = %SEED")
    bindings += self._mixture("eval", held_out)
    bindings += [
      "MixtureInputGenerator.batch_size = %BATCH_SIZE",
      "MixtureInputGenerator.weights = 'by_size'",
      f"MixtureInputGenerator.memory_budget = {2**30}",
    ]
    unused = ["DATASET", "STATISTICS", "TRAIN_EPISODES", "EVAL_EPISODES"]
    bindings += [f"{name} = None" for name in unused]
    defaults = [*(_query(f"%{DEFAULT_BINDINGS}") or ()), *unused]
    bindings.append(f"{DEFAULT_BINDINGS} = {defaults!r}")
    bindings += _small_batch(num_windows)
    with gin.unlock_config():
      gin.parse_config(bindings)
    model = self._policy.model_cls()
    for name, run in self._runs.items():
      run.write_robot_statistics(model.native_model(robots[self._robots[name]]))
    for robot in robots.values():
      _say(f"robot {robot.name}: {robot.signature.describe()}")
    return bindings

  @property
  def _changes(self) -> Mapping[str, Any]:
    return _query(f"{self._policy.model_name}.conventions") or {}

  def _design(self) -> dict[str, Embodiment]:
    owners: dict[str, list[_Run]] = {}
    for name, run in self._runs.items():
      owners.setdefault(self._robots[name], []).append(run)
    files = {n: [run.statistics_path for run in group] for n, group in owners.items()}
    return design_embodiments(
      {name: group[0].signature for name, group in owners.items()},
      {name: group if len(group) > 1 else group[0] for name, group in files.items()},
      {name: group[0].robot[1] for name, group in owners.items()},
    )

  def _mixture(self, split: str, names: Sequence[str]) -> list[str]:
    target = f"train_eval_model.input_generator_{split}"
    if not names:
      return [f"{target} = None"]
    sources = ", ".join(f"{n!r}: @{n}/{split}/EpisodesInputGenerator()" for n in names)
    return [
      f"{target} = @{split}/MixtureInputGenerator()",
      f"{split}/MixtureInputGenerator.sources = {{{sources}}}",
      f"{split}/MixtureInputGenerator.embodiments = {_references(names)}",
    ]


def _closed_loop_bindings(env: str, has_success: bool) -> list[str]:
  metric = "success_rate" if has_success else "reward"
  return [
    "train_eval_model.callbacks = [@ClosedLoopEvaluation()]",
    f"ClosedLoopEvaluation.env = {env}",
    f"BestExporter.metric = 'closed_loop/{metric}'",
    "BestExporter.larger_is_better = True",
  ]


def _references(names: Any) -> str:
  return "{" + ", ".join(f"{name!r}: @{name}/Embodiment()" for name in names) + "}"


def _robot_bindings(robot: Embodiment, scope: str) -> list[str]:
  fields = {k: v for k, v in vars(robot).items() if k != "signature"}
  return [
    *(f"{scope}/Embodiment.{name} = {value!r}" for name, value in fields.items()),
    f"{scope}/Embodiment.signature = @{scope}/Signature()",
    *_signature_bindings(robot.signature, scope),
  ]


def _scope(name: str | None) -> str:
  return re.sub(r"\W+", "_", str(name)).strip("_") or "robot"


def _source_names(datasets: Sequence[str]) -> list[str]:
  """Returns a unique name for each data set, from the last part of its path."""
  names: list[str] = []
  for path in datasets:
    stem = _scope(os.path.basename(path.rstrip("/")).partition(".")[0])
    stem = f"robot_{stem}" if stem[0].isdigit() else stem
    number, name = 1, stem
    while name in names:
      number += 1
      name = f"{stem}_{number}"
    names.append(name)
  return names


def _device_bindings() -> list[str]:
  """Returns the binding of bfloat16 if all devices compute it fast."""
  gpus = tf.config.list_physical_devices("GPU")
  details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
  is_fast = bool(tf.config.list_physical_devices("TPU")) or (
    bool(details)
    and all(each.get("compute_capability", (0,))[0] >= 8 for each in details)
  )
  return ["DTYPE_POLICY = 'mixed_bfloat16'"] if is_fast else []


def _schedule_bindings() -> list[str]:
  """Returns the binding of a warmup of at most `_WARMUP_SHARE` of the run."""
  steps, warmup = _query("%NUM_TRAIN_STEPS"), _query("%WARMUP_STEPS")
  if steps is None or warmup is None:
    return []
  return [f"WARMUP_STEPS = {min(warmup, int(_WARMUP_SHARE * steps))}"]


def _query(name: str) -> Any:
  """Returns gin's value of a parameter or macro, or None."""
  try:
    return gin.query_parameter(name)
  except ValueError:
    return None


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)
