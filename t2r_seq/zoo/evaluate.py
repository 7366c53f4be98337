"""Evaluates an exported policy in a Gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import actors, errors, policies
from t2r_seq.actors.evaluation import Evaluation, ends_in_success
from t2r_seq.store import videos
from t2r_seq.zoo import environment


def evaluate_export(
  predictor: Any,
  env_id: str,
  *,
  num_episodes: int = 50,
  seed: int = 0,
  max_steps: int | None = None,
  video_dir: str | None = None,
  observe: Mapping[str, str] | None = None,
  task: str | None = None,
  options: Mapping[str, Any] | None = None,
  create_policy: Callable[[Any], Any] = policies.RegressionPolicy,
) -> Evaluation:
  """Evaluates a policy in a Gymnasium environment.

  Observations are matched to the policy's paths, and actions are checked, before the
  first episode.

  Args:
    predictor: predictor of a loaded export.
    env_id: id of the environment.
    num_episodes: number of episodes.
    seed: seed of the episodes; equal seeds give each policy the same episodes.
    max_steps: steps after which an episode is truncated; None: the environment's limit.
    video_dir: folder for an MP4 video of each episode; None records none.
    observe: paths by the environment's keys; see `environment.match_observations`.
    task: text for policies that take one; None: the environment's.
    options: options of `gymnasium.make`.
    create_policy: makes the policy of the predictor, such as an `OverlappedPolicy` with
      a `SimulatedLatency`.
  Returns:
    Success and return with their intervals.
  Raises:
    SpecError: an unknown environment or option; observations or actions that do not
      fit; no text for a policy that takes one; or `seed` is below 0.
    ValueError: `num_episodes` or `max_steps` is below 1.
    ImportError: a package is missing.
  """
  errors.check_count("evaluate", "seed", seed, 0)
  observe = observe or {}
  is_rendered = video_dir is not None or environment.RENDER in observe
  env = environment.make_environment(env_id, options, is_rendered)
  try:
    specs = dict(predictor.get_step_specification().items())
    texts = find_texts(env, env_id, specs, task)
    matching = environment.match_observations(
      env_id, env.observation_space, specs, observe
    )
    sizes = {p: specs[p].shape.as_list() for p in matching if len(specs[p].shape) == 3}
    wrapped = environment.PolicyEnvironment(
      env, matching, sizes, texts, video_dir is not None
    )
    policy = create_policy(predictor)
    observation, _ = wrapped.reset(seed=seed)
    policy.reset()
    action, _ = policy.sample_action(observation, 0.0)
    environment.check_action(env_id, env.action_space, np.shape(action))
    if video_dir is not None:
      os.makedirs(video_dir, exist_ok=True)
    number = 0

    def success(episode: Any) -> bool | None:
      nonlocal number
      if video_dir is not None:
        _write_video(os.path.join(video_dir, f"episode_{number:03d}.mp4"), wrapped)
      number += 1
      return ends_in_success(episode)

    return actors.evaluate_policies(
      {"": policy}, wrapped, num_episodes, (seed,), max_steps, success
    )[""]
  finally:
    env.close()


def find_texts(
  env: Any, env_id: str, specs: Mapping[str, Any], task: str | None
) -> dict[str, str]:
  """Returns the text of each text path: `task`, or the environment's instruction.

  Raises:
    SpecError: a path takes a text, and there is neither.
  """
  paths = [path for path, spec in specs.items() if spec.dtype == tf.string]
  names = ("task_description", "instruction", "language_instruction")
  texts = (getattr(env.unwrapped, name, None) for name in names)
  text = task or next((each for each in texts if isinstance(each, str)), None)
  if paths and text is None:
    raise errors.SpecError(
      f"environment: {env_id}: {paths[0]}: expected a text of the task, got none. Give "
      "it: --task TEXT."
    )
  return dict.fromkeys(paths, text or "")


def _write_video(path: str, env: environment.PolicyEnvironment) -> None:
  fps = getattr(env.env, "metadata", {}).get("render_fps") or 30
  encoding = videos.VideoEncoding(codec="libx264", gop=12)
  frames = [
    frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in env.frames
  ]
  with open(path, "wb") as file:
    file.write(videos.encode(frames, fps, encoding))
