"""The policies of all robots of an export, which share its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.lite.policy_io import PolicyState
from t2r_seq.policies.loaded_export import LoadedPolicy, choose_robot, load_policy
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.specs.assets import list_exports


class RobotPolicies:
  """Acts for each robot of an export: `step(observation, state, robot="ur5")`.

  The SavedModel is loaded once. Callers keep one state for each robot.

  Attributes:
    robots: names of the robots.
  """

  def __init__(self, export_dir: str, allow_nan: bool = False) -> None:
    """Loads the newest export of a folder, or the folder that is one.

    Args:
      export_dir: holds one folder per version, or is itself one export.
      allow_nan: accepts features with NaN or infinity.
    Raises:
      SpecError: there is no export, its files are damaged, or it names no robots.
    """
    exports = list_exports(str(export_dir))
    robots = PolicyRecord.load(exports[-1].path).robots if exports else None
    if robots is None:
      got = "one of a single robot" if exports else "none"
      raise errors.SpecError(
        f"load export: {export_dir}: expected an export of several robots, got {got}."
      )
    self._path, self.robots = exports[-1].path, [*robots]
    model = tf.saved_model.load(self._path)
    self._policies = {
      name: load_policy(exports[-1], model, name, allow_nan) for name in robots
    }

  def of(self, robot: str | None) -> LoadedPolicy:
    """Returns the policy of a robot.

    Raises:
      SpecError: there is no such robot, or there are several and `robot` is None.
    """
    if robot not in self._policies:
      robot = choose_robot(self._path, robot)
    return self._policies[str(robot)]

  def initial_state(
    self, seeds: Sequence[int] = (0,), robot: str | None = None
  ) -> PolicyState:
    """Returns the state of a robot before a first step; see `PurePolicy`."""
    return self.of(robot).initial_state(seeds)

  def step(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    robot: str | None = None,
    **times: Any,
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Returns a robot's outputs and its next state; see `PurePolicy.step`.

    Args:
      observation: observation of the robot, by its paths, [N, ...].
      state: state from `initial_state`, or from the robot's previous step.
      is_first: bool, or bool [N]; true if an episode starts.
      robot: its name.
      **times: `timestamp` and `stamps`.
    """
    return self.of(robot).step(observation, state, is_first, **times)
