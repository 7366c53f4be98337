"""The policy of a round: the newest export's, or what acts before there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from absl import logging

from t2r_seq import policies
from t2r_seq.actors import metrics as metrics_lib

_LOG_EVERY_SECONDS = 60.0


class NewestPolicy:
  """Restores a policy between rounds, and knows whether that changed it.

  Attributes:
    policy: acts now.
    global_step: its training step; 0 for a policy that has none.
    is_initial: whether it acts in want of an export.
    is_new: whether its training step is later than that of the last round.
  """

  def __init__(
    self, policy: Any, initial_policy_class: Callable[[], Any] | None = None
  ) -> None:
    """Creates it; nothing is loaded yet.

    Args:
      policy: is restored, if it has `restore()`.
      initial_policy_class: makes the policy that acts until there is an export.
    """
    self.policy = policy
    self.global_step = 0
    self.is_initial = False
    self.is_new = True
    self._policy = policy
    self._initial = initial_policy_class() if initial_policy_class else None
    self._last_step = -1
    self._logged = time.monotonic()

  def restore(self) -> None:
    """Loads the newest export.

    Raises:
      NoModelError: there is none, and no initial policy.
    """
    try:
      metrics_lib.restore_policy(self._policy)
      self.global_step = int(getattr(self._policy, "global_step", 0))
    except policies.NoModelError:
      if self._initial is None:
        raise
      self.policy, self.is_initial = self._initial, True
      return
    self.policy, self.is_initial = self._policy, False
    self.is_new = self.global_step > self._last_step

  def end_round(self) -> None:
    """Remembers which policy acted."""
    if not self.is_initial:
      self._last_step = self.global_step
      self.is_new = False

  def log_wait(self) -> None:
    """Says, now and then, that there is nothing newer yet."""
    if time.monotonic() - self._logged >= _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      logging.info("Waiting for a policy newer than that of step %d.", self.global_step)
