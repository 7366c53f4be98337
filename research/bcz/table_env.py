"""A table with coloured blocks, a gripper over it, and an instruction in words.

Kinematic, and drawn by numpy. World: the table is [-1, 1] in x (to the right) and y
(away), heights are above it. The camera looks down at a slant, so that what is high is
drawn further up; the gripper has a shadow. Blocks pass through each other.

The instruction is 'touch', 'push' or 'pick', and one of the four blocks that are always
there: without it, nobody knows what to do. No verb succeeds by the way of another:
touching is from above, with a closed gripper, and leaves the block where it is; pushing
is from the side; picking takes an open gripper, turned as the block is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, imports

try:
  import gymnasium
except ImportError as error:
  raise imports.missing_extra("gymnasium", "envs") from error

VERBS = ("touch", "push", "pick")
COLORS = {
  "red": (214, 54, 44),
  "green": (52, 160, 70),
  "blue": (48, 92, 206),
  "yellow": (232, 194, 40),
}
INSTRUCTIONS = tuple(f"{v} the {c} block" for v, c in itertools.product(VERBS, COLORS))
# Each verb, and each of three colours, lacks one combination that it knows of others.
HELD_OUT = ("touch the green block", "push the red block", "pick the blue block")
SEEN = tuple(text for text in INSTRUCTIONS if text not in HELD_OUT)

# How far a step goes along each axis, and how far it turns, in radians.
STEP, TURN = 0.15, 0.4
BLOCK = np.array([0.17, 0.09])  # Half of a block's length and width.
TOP = 0.12  # Height of a block.
_TIP = 0.04  # Radius of the gripper's tip.
_LIMITS = np.array([[-1.0, -1.0, 0.02], [1.0, 1.0, 0.6]])
_YAW_LIMIT = 1.3
_FAR = 14.0  # Steps from one side to the other.
_MOVED, _LIFTED, _STILL = 0.2, 0.25, 0.05
_SUBSTEPS = 4
_TABLE, _FLOOR = (205, 196, 184), (120, 120, 126)
_STEEL = (38, 40, 46)

Observation = dict[str, Any]


@gin.configurable
def seen_instructions() -> tuple[str, ...]:
  """Returns the combinations of verb and block that demonstrations show."""
  return SEEN


@gin.configurable
def held_out_instructions() -> tuple[str, ...]:
  """Returns the combinations that no demonstration shows."""
  return HELD_OUT


@gin.configurable
class TableEnv(gymnasium.Env):
  """Does what it is told with one of four blocks; the reward of success is 1.

  Observations are `{"state": {"image": [size, size, 3] uint8, "gripper": [5] float32},
  "instruction": str}`; the gripper is x, y, height, yaw and opening. An action [5] is
  how far it is to the goal, in `STEP`s: a step goes one at most along each axis; which
  yaw to turn to, by `TURN` at most; and whether to close: above 0.5. The `info` has
  `is_success`.

  All randomness comes from `reset(seed=...)`: the same seed gives the same bytes.
  """

  metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

  def __init__(
    self,
    instructions: Sequence[str] = INSTRUCTIONS,
    num_steps: int = 30,
    image_size: int = 48,
    render_mode: str | None = None,
  ) -> None:
    """Creates the environment.

    Args:
      instructions: one of them is drawn for each episode.
      num_steps: actions after which an episode is cut off.
      image_size: height and width of the frames in pixels.
      render_mode: None or "rgb_array".
    Raises:
      SpecError: an instruction is not known, or there is none.
    """
    unknown = sorted(set(instructions) - set(INSTRUCTIONS))
    if unknown or not instructions:
      raise errors.SpecError(
        f"TableEnv: instructions: expected some of {errors.listing(INSTRUCTIONS)}, got "
        f"{errors.listing(unknown) if unknown else 'none'}."
      )
    self.num_steps, self.render_mode = num_steps, render_mode
    self._instructions = tuple(instructions)
    spaces = gymnasium.spaces
    image_space = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    state_space = spaces.Dict(
      {"image": image_space, "gripper": spaces.Box(-2.0, 2.0, (5,), np.float32)}
    )
    letters = "abcdefghijklmnopqrstuvwxyz "
    self.observation_space = spaces.Dict(
      {"state": state_space, "instruction": spaces.Text(64, charset=letters)}
    )
    high = np.array([_FAR, _FAR, _FAR, _YAW_LIMIT, 1], np.float32)
    self.action_space = spaces.Box(-high, high)
    self._painter = _Painter(image_size)
    self.instruction = self._instructions[0]
    self._begin(np.zeros((len(COLORS), 2)), np.zeros(len(COLORS)), np.zeros(2))

  @property
  def verb(self) -> str:
    """What is to be done."""
    return self.instruction.split()[0]

  @property
  def target(self) -> int:
    """The number of the block that it is to be done with."""
    return list(COLORS).index(self.instruction.split()[2])

  @property
  def is_success(self) -> bool:
    """Whether it is done."""
    block, is_held = self.target, self.held == self.target
    moved = float(np.linalg.norm(self.blocks[block, :2] - self._start[block]))
    if self.verb == "pick":
      return is_held and self.blocks[block, 2] >= _LIFTED
    if is_held or block in self._was_held:
      return False
    if self.verb == "push":
      return moved >= _MOVED
    on_top = self._is_inside(block, self.position) and self.position[2] <= TOP + 0.03
    return on_top and not self.is_open and moved < _STILL

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[Observation, dict[str, Any]]:
    """Draws an instruction, where blocks lie, and where the gripper is."""
    super().reset(seed=seed, options=options)
    random = self.np_random
    self.instruction = self._instructions[random.integers(len(self._instructions))]
    places: list[np.ndarray] = []
    while len(places) < len(COLORS):
      place = random.uniform([-0.7, -0.75], [0.55, 0.75])
      # So far apart that the gripper fits between two of them.
      if all(np.linalg.norm(place - other) > 0.55 for other in places):
        places.append(place)
      elif random.random() < 0.02:  # Too little room is left: begin anew.
        places.clear()
    yaws = random.uniform(-1.0, 1.0, len(COLORS))
    self._begin(np.stack(places), yaws, random.uniform(-0.7, 0.7, 2))
    return self._observe(), {"is_success": False}

  def step(
    self, action: np.ndarray
  ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Moves, turns, opens or closes; an episode ends with success."""
    action = np.asarray(action, np.float64)
    move = STEP * np.clip(action[:3], -1.0, 1.0)
    turn = float(np.clip(action[3] - self.yaw, -TURN, TURN))
    for _ in range(_SUBSTEPS):
      self._move(move / _SUBSTEPS, turn / _SUBSTEPS)
    self._grip(is_open=action[4] <= 0.5)
    self._step += 1
    is_success = self.is_success
    is_cut = self._step >= self.num_steps and not is_success
    info = {"is_success": is_success}
    return self._observe(), float(is_success), is_success, is_cut, info

  def render(self) -> np.ndarray | None:
    """Returns the current frame in the mode "rgb_array", else None."""
    return None if self.render_mode is None else self._draw()

  def _begin(self, places: np.ndarray, yaws: np.ndarray, gripper: np.ndarray) -> None:
    # Of each block: x, y, height of its bottom, yaw.
    self.blocks = np.column_stack([places, np.zeros(len(places)), yaws])
    self.position, self.yaw = np.append(gripper, 0.5), 0.0
    self.is_open = True
    self.held: int | None = None
    self._start, self._was_held = places.copy(), set[int]()
    self._step = 0

  def _move(self, delta: np.ndarray, turn: float) -> None:
    """Moves by a part of a step: blocks are pushed, or carried, or stood upon."""
    old = self.position
    new = np.clip(old + delta, *_LIMITS)
    yaw = float(np.clip(self.yaw + turn, -_YAW_LIMIT, _YAW_LIMIT))
    if self.held is not None:
      self.blocks[self.held] += [*(new - old), yaw - self.yaw]
      self.blocks[self.held, 2] = max(self.blocks[self.held, 2], 0.0)
    else:
      for block in range(len(self.blocks)):
        if new[2] < TOP and self._is_inside(block, new):
          if old[2] < TOP:
            self.blocks[block, :2] += (new - old)[:2]
          elif not self._fits_around(block, new, yaw):
            new[2] = TOP
    self.position, self.yaw = new, yaw

  def _grip(self, is_open: bool) -> None:
    if is_open and self.held is not None:
      self.blocks[self.held, 2] = 0.0
      self.held = None
    elif self.is_open and not is_open and self.position[2] < TOP - 0.03:
      for block in range(len(self.blocks)):
        if self._fits_around(block, self.position, self.yaw):
          self.held = block
          self._was_held.add(block)
    self.is_open = is_open

  def _is_inside(self, block: int, position: np.ndarray) -> bool:
    return bool((np.abs(self._as_block_sees(block, position)) < BLOCK + _TIP).all())

  def _fits_around(self, block: int, position: np.ndarray, yaw: float) -> bool:
    along, across = np.abs(self._as_block_sees(block, position))
    is_aligned = abs(yaw - self.blocks[block, 3]) < 0.5
    return bool(self.is_open and is_aligned and along < 0.14 and across < 0.09)

  def _as_block_sees(self, block: int, position: np.ndarray) -> np.ndarray:
    return _rotate(position[:2] - self.blocks[block, :2], -self.blocks[block, 3])

  def _observe(self) -> Observation:
    gripper = np.array([*self.position, self.yaw, self.is_open], np.float32)
    return {
      "state": {"image": self._draw(), "gripper": gripper},
      "instruction": self.instruction,
    }

  def _draw(self) -> np.ndarray:
    paint = self._painter
    paint.begin()
    for number in np.argsort(self.blocks[:, 2], kind="stable"):
      x, y, z, yaw = self.blocks[number]
      color = np.array(list(COLORS.values())[number])
      paint.rectangle((x, y, z), yaw, BLOCK, 0.7 * color)
      paint.rectangle((x, y, z + TOP), yaw, BLOCK, color)
    x, y, z = self.position
    paint.rectangle((x, y, 0), self.yaw, (0.06, 0.06), _STEEL, 0.35)
    gap = 0.14 if self.is_open else (0.1 if self.held is not None else 0.04)
    for side in (-1, 1):
      dx, dy = _rotate(np.array([0.0, side * gap]), self.yaw)
      paint.rectangle((x + dx, y + dy, z), self.yaw, (0.07, 0.035), _STEEL)
    paint.rectangle((x, y, z + 0.05), self.yaw, (0.025, gap), _STEEL)
    return paint.image()


class _Painter:
  """Paints rectangles, with smooth edges, over each other."""

  def __init__(self, size: int) -> None:
    self._size = size
    self._scale = size / 2.3
    rows = np.arange(size, dtype=np.float32)
    self._columns = (rows + 0.5) / self._scale - 1.15
    self._rows = 1.25 - (rows + 0.5) / self._scale
    self._frame = np.full((size, size, 3), _FLOOR, np.float32)
    self.rectangle((0, 0, 0), 0, (1.02, 1.02), _TABLE)
    self._empty = self._frame.copy()

  def begin(self) -> None:
    self._frame[:] = self._empty

  def rectangle(
    self, place: Any, yaw: float, half: Any, color: Any, opacity: float = 1.0
  ) -> None:
    x, y, z = place
    y += 0.35 * z  # The slant of the camera.
    reach = float(np.hypot(*half)) + 1 / self._scale
    rows = self._between(1.25 - y - reach, 1.25 - y + reach)
    columns = self._between(x + 1.15 - reach, x + 1.15 + reach)
    dx, dy = self._columns[None, columns] - x, self._rows[rows, None] - y
    cos, sin = np.cos(yaw), np.sin(yaw)
    outside = np.maximum(
      np.abs(dx * cos + dy * sin) - half[0], np.abs(dy * cos - dx * sin) - half[1]
    )
    cover = opacity * np.clip(0.5 - outside * self._scale, 0.0, 1.0)[..., None]
    part = self._frame[rows, columns]
    part += cover.astype(np.float32) * (np.asarray(color, np.float32) - part)

  def image(self) -> np.ndarray:
    return np.round(self._frame).astype(np.uint8)

  def _between(self, low: float, high: float) -> slice:
    return slice(max(int(low * self._scale), 0), max(int(high * self._scale) + 2, 0))


def _rotate(vector: np.ndarray, angle: float) -> np.ndarray:
  cos, sin = np.cos(angle), np.sin(angle)
  return np.array(
    [cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]]
  )
