"""Gymnasium environments whose observations have the paths of a policy."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports

RENDER = "render"
# Packages that register environments without a namespace in their ids.
_PACKAGES = {
  "ALE/": "ale_py",
  "Fetch": "gymnasium_robotics",
  "HandReach": "gymnasium_robotics",
  "PointMaze": "gymnasium_robotics",
  "Meta-World": "metaworld",
}


@gin.configurable
def make_environment(
  env_id: str = gin.REQUIRED,
  options: Mapping[str, Any] | None = None,
  is_rendered: bool = False,
) -> Any:
  """Makes a Gymnasium environment; imports the package that registers it.

  Args:
    env_id: such as 'LunarLander-v3', or 'gym_pusht/PushT-v0'.
    options: options of `gymnasium.make`.
    is_rendered: whether frames are read, so that `render_mode` must be 'rgb_array'.
  Raises:
    ImportError: Gymnasium, or the environment's package, is missing.
    SpecError: no environment has this id, or it does not take an option.
  """
  gymnasium = imports.load_extra("gymnasium", "envs")
  name = env_id.partition(":")[2] or env_id
  package = env_id.partition(":")[0] if ":" in env_id else name.partition("/")[0]
  package = next(
    (p for start, p in _PACKAGES.items() if name.startswith(start)), package
  )
  if name not in gymnasium.registry and (package != name):
    try:
      importlib.import_module(package.replace("-", "_"))
    except ImportError as error:
      raise ImportError(
        f"the environment {env_id} needs the package {package}, which cannot be "
        f"imported: {error}. pip install {package.replace('_', '-')}"
      ) from error
  kwargs = {**({"render_mode": "rgb_array"} if is_rendered else {}), **(options or {})}
  try:
    return gymnasium.make(name, **kwargs)
  except gymnasium.error.DependencyNotInstalled as error:
    raise ImportError(f"the environment {env_id} needs a package: {error}") from error
  except TypeError as error:
    if "unexpected keyword argument" not in str(error):
      raise
    raise errors.SpecError(f"environment: {env_id}: options: {error}") from error
  except gymnasium.error.Error as error:
    text = str(error)
    if "Did you mean" not in text:  # Gymnasium suggests a name or version, too.
      text += errors.nearest(name, gymnasium.registry)
    raise errors.SpecError(f"environment: {env_id}: {text}") from error


def match_observations(
  env_id: str,
  space: Any,
  expected: Mapping[str, Any],
  observe: Mapping[str, str] | None = None,
) -> dict[str, str]:
  """Finds the environment's observation for each path of a policy.

  It has the path's shape, and is uint8 if the path is. If several fit, it is the one
  with the same last part of the name.

  Args:
    env_id: for errors.
    space: the environment's observation space.
    expected: specs of one step by path; texts are left out.
    observe: paths by the environment's keys, for observations that are not searched;
      the key 'render' is the rendered frame.
  Returns:
    Keys by path; keys of nested dictionaries are joined by '/', and '' is the whole
    observation.
  Raises:
    SpecError: `observe` has an unknown key or path, or a path fits no observation or
      several; lists them.
  """
  where = f"environment: {env_id}"
  shapes = _shapes(space)
  expected = {path: spec for path, spec in expected.items() if spec.dtype != tf.string}
  keys: dict[str, str] = {}
  for key, path in (observe or {}).items():
    if path not in expected:
      raise errors.SpecError(
        f"{where}: observe: expected one of the policy's paths "
        f"{errors.listing(expected)}, got '{path}'.{errors.nearest(path, expected)}"
      )
    if key != RENDER and key not in shapes:
      raise errors.SpecError(
        f"{where}: observe: expected an observation of {_listing(shapes)}, or "
        f"'{RENDER}', got '{key}'.{errors.nearest(key, shapes)}"
      )
    keys[path] = key
  for path, spec in expected.items():
    if path in keys:
      fits = [keys[path]]
      if keys[path] != RENDER and not _fits(shapes[keys[path]], spec):
        fits = []
    else:
      fits = [key for key, each in shapes.items() if _fits(each, spec)]
      named = [key for key in fits if _tail(key) == _tail(path)]
      fits = named or fits
    if len(fits) != 1:
      hint = f"Name it: --observe KEY={path}."
      if len(spec.shape) == 3:
        hint += f" --observe {RENDER}={path} takes the rendered frame."
      raise errors.SpecError(
        f"{where}: {path}: expected one observation that is {errors.describe(spec)}, "
        f"got {_listing({k: shapes[k] for k in fits} or shapes)}. {hint}"
      )
    keys[path] = fits[0]
  return keys


def check_action(env_id: str, space: Any, shape: tuple[int, ...]) -> None:
  """Checks that a policy's actions have the shape of the environment's.

  Args:
    env_id: for the error.
    space: the environment's action space.
    shape: shape of an action of the policy.
  Raises:
    SpecError: the shapes differ.
  """
  if tuple(space.shape) != tuple(shape):
    raise errors.SpecError(
      f"environment: {env_id}: action: expected {tuple(space.shape)}, of {space}, got "
      f"{tuple(shape)} of the policy. Evaluate it in the task of its data."
    )


def tells_success(env: Any) -> bool:
  """Whether the info of a step has 'is_success' or 'success'; takes a random step."""
  env.reset(seed=0)
  env.action_space.seed(0)
  info = env.step(env.action_space.sample())[-1]
  return "is_success" in info or "success" in info


class PolicyEnvironment:
  """An environment whose observations have the paths of a policy.

  Attributes:
    frames: the rendered frames of the current episode, if they are recorded.
  """

  def __init__(
    self,
    env: Any,
    matching: Mapping[str, str],
    sizes: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    is_recorded: bool = False,
  ) -> None:
    """Wraps a Gymnasium environment.

    Args:
      env: the environment.
      matching: keys by path; see `match_observations`.
      sizes: shapes of images by path, to which rendered frames are resized.
      texts: texts by path, which are added to each observation.
      is_recorded: whether to keep the rendered frames of an episode.
    """
    self.env = env
    self.frames: list[np.ndarray] = []
    self._matching, self._sizes = dict(matching), dict(sizes or {})
    self._texts, self._is_recorded = dict(texts or {}), is_recorded
    self.action_space = env.action_space

  def reset(
    self, *, seed: int | None = None, options: Any = None
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Starts an episode; see `gymnasium.Env.reset`."""
    observation, info = self.env.reset(seed=seed, options=options)
    self.frames = []
    return self._observe(observation), info

  def step(self, action: Any) -> tuple[Any, ...]:
    """Takes an action, clipped to its bounds; see `gymnasium.Env.step`."""
    space = self.action_space
    if hasattr(space, "low"):
      action = np.clip(np.asarray(action, space.dtype), space.low, space.high)
    observation, *rest = self.env.step(action)
    return self._observe(observation), *rest

  def close(self) -> None:
    """Closes the environment."""
    self.env.close()

  def _observe(self, observation: Any) -> dict[str, Any]:
    is_rendered = self._is_recorded or RENDER in self._matching.values()
    frame = self.env.render() if is_rendered else None
    if self._is_recorded:
      self.frames.append(np.asarray(frame))
    flat = _flat(observation)
    values: dict[str, Any] = {
      path: self._resize(path, frame) if key == RENDER else flat[key]
      for path, key in self._matching.items()
    }
    for path, value in values.items():
      if np.asarray(value).dtype.kind == "f":
        values[path] = np.asarray(value, np.float32)
    return {**values, **self._texts}

  def _resize(self, path: str, frame: Any) -> np.ndarray:
    size = tuple(self._sizes.get(path, frame.shape))[:2]
    if frame.shape[:2] == size:
      return np.asarray(frame)
    resized = tf.image.resize(frame, size, "area")
    return tf.cast(tf.round(resized), tf.uint8).numpy()


@gin.configurable
def policy_environment(
  env_id: str = gin.REQUIRED,
  matching: Mapping[str, str] = gin.REQUIRED,
  sizes: Mapping[str, Any] | None = None,
  texts: Mapping[str, str] | None = None,
  options: Mapping[str, Any] | None = None,
) -> PolicyEnvironment:
  """Makes an environment as a policy sees it; see `PolicyEnvironment`.

  Args:
    env_id: Gymnasium's id of the environment.
    matching: keys of its observations by path.
    sizes: shapes of images by path.
    texts: texts by path.
    options: options of `gymnasium.make`.
  Raises:
    ImportError, SpecError: see `make_environment`.
  """
  env = make_environment(env_id, options, RENDER in matching.values())
  return PolicyEnvironment(env, matching, sizes, texts)


def _shapes(space: Any) -> dict[str, Any]:
  parts = getattr(space, "spaces", None)
  if not isinstance(parts, Mapping):
    return {"": space}
  shapes = {}
  for key, part in parts.items():
    below = _shapes(part)
    shapes.update({f"{key}/{k}".rstrip("/"): each for k, each in below.items()})
  return shapes


def _flat(observation: Any) -> dict[str, Any]:
  if not isinstance(observation, Mapping):
    return {"": observation}
  flat = {}
  for key, part in observation.items():
    flat.update({f"{key}/{k}".rstrip("/"): value for k, value in _flat(part).items()})
  return flat


def _fits(space: Any, spec: Any) -> bool:
  if getattr(space, "shape", None) is None or tuple(space.shape) != tuple(spec.shape):
    return False
  is_image = np.dtype(space.dtype) == np.uint8
  return is_image == (tf.as_dtype(spec.dtype) == tf.uint8)


def _tail(name: str) -> str:
  return re.split(r"[/.]", name)[-1]


def _listing(shapes: Mapping[str, Any]) -> str:
  return errors.listing(
    f"{key or 'the observation'} {getattr(space, 'shape', '')} "
    f"{getattr(space, 'dtype', type(space).__name__)}"
    for key, space in shapes.items()
  )
