"""A table, a duck and a camera, in a PyBullet world of their own.

The scene knows nothing of episodes or rewards: it puts the duck somewhere, looks
at it from somewhere and returns the pixels. Rendering is PyBullet's software
renderer (TinyRenderer) without shadows: no display, no GPU, and the same bytes for
the same poses on every run.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from t2r_seq import imports

try:
  import pybullet
  import pybullet_data
except ImportError as error:
  raise imports.missing_extra("pybullet", "pose-env") from error

TABLE_HALF_SIZE = 1.2
_TABLE_COLOR = (0.55, 0.60, 0.68, 1.0)
_FLOOR_COLOR = (0.22, 0.25, 0.30, 1.0)
_DUCK_COLOR = (1.0, 0.82, 0.10, 1.0)
# One stripe per table edge: they tell the camera's yaw from a single frame.
_EDGE_COLORS = (
  (0.85, 0.25, 0.22, 1.0),
  (0.20, 0.60, 0.35, 1.0),
  (0.20, 0.40, 0.80, 1.0),
  (0.93, 0.93, 0.93, 1.0),
)


@dataclasses.dataclass(frozen=True)
class Camera:
  """Where the camera stands: it always looks at the table's centre.

  Attributes:
    yaw: degrees around the vertical axis; 0 looks along +y.
    pitch: degrees; -90 looks straight down.
    distance: metres from the table's centre.
  """

  yaw: float
  pitch: float
  distance: float


class Scene:
  """Owns one PyBullet world (DIRECT mode) and renders it.

  Args:
    image_size: height and width of a frame in pixels.
    duck_scale: metres per unit of the duck's mesh.
    field_of_view: the camera's, in degrees.
  """

  def __init__(
    self,
    image_size: int = 64,
    duck_scale: float = 0.28,
    field_of_view: float = 42.0,
  ):
    self._image_size = image_size
    self._client: int | None = pybullet.connect(pybullet.DIRECT)
    self._projection = pybullet.computeProjectionMatrixFOV(
      field_of_view, 1.0, 0.1, 20.0
    )
    self._add_table()
    self._duck = self._add_duck(duck_scale)

  def place_duck(self, x: float, y: float, heading: float) -> None:
    """Puts the duck at (x, y) metres on the table, turned by heading radians."""
    pybullet.resetBasePositionAndOrientation(
      self._duck,
      (x, y, 0.0),
      pybullet.getQuaternionFromEuler((np.pi / 2, 0.0, heading)),
      physicsClientId=self._require_client(),
    )

  def render(self, camera: Camera) -> np.ndarray:
    """Returns what the camera sees: [image_size, image_size, 3] uint8."""
    pixels = pybullet.getCameraImage(
      self._image_size,
      self._image_size,
      _view_matrix(camera),
      self._projection,
      shadow=0,
      lightDirection=(1.0, -1.5, 3.0),
      renderer=pybullet.ER_TINY_RENDERER,
      flags=pybullet.ER_NO_SEGMENTATION_MASK,
      physicsClientId=self._require_client(),
    )[2]
    shape = (self._image_size, self._image_size, 4)
    return np.array(np.reshape(pixels, shape)[..., :3], np.uint8)

  def to_pixels(self, camera: Camera, x: float, y: float) -> tuple[float, float]:
    """Returns where (x, y) on the table stands in the camera's frame.

    Returns:
      Column and row in pixels; (0, 0) is the middle of the first pixel.
    """
    view = np.reshape(_view_matrix(camera), (4, 4)).T
    projection = np.reshape(self._projection, (4, 4)).T
    clip = projection @ view @ np.array([x, y, 0.0, 1.0])
    right, up = clip[:2] / clip[3]
    half = self._image_size / 2
    return float((1 + right) * half - 0.5), float((1 - up) * half - 0.5)

  def close(self) -> None:
    """Frees the world; a second call does nothing."""
    if self._client is not None:
      pybullet.disconnect(physicsClientId=self._client)
      self._client = None

  def _require_client(self) -> int:
    if self._client is None:
      raise RuntimeError("Scene: used after close(). Make a new one.")
    return self._client

  def _add_table(self) -> None:
    size, rim = TABLE_HALF_SIZE, 0.06
    self._add_box((5.0, 5.0, 0.01), (0.0, 0.0, -0.40), _FLOOR_COLOR)
    self._add_box((size, size, 0.02), (0.0, 0.0, -0.02), _TABLE_COLOR)
    for i, color in enumerate(_EDGE_COLORS):
      side = size if i < 2 else -size
      along_x = i % 2 == 0
      half_extents = (size, rim, 0.03) if along_x else (rim, size, 0.03)
      position = (0.0, side, 0.0) if along_x else (side, 0.0, 0.0)
      self._add_box(half_extents, position, color)

  def _add_box(
    self,
    half_extents: tuple[float, float, float],
    position: tuple[float, float, float],
    color: tuple[float, float, float, float],
  ) -> None:
    shape = pybullet.createVisualShape(
      pybullet.GEOM_BOX,
      halfExtents=half_extents,
      rgbaColor=color,
      physicsClientId=self._client,
    )
    pybullet.createMultiBody(0, -1, shape, position, physicsClientId=self._client)

  def _add_duck(self, scale: float) -> int:
    shape = pybullet.createVisualShape(
      pybullet.GEOM_MESH,
      fileName=os.path.join(pybullet_data.getDataPath(), "duck.obj"),
      meshScale=(scale,) * 3,
      rgbaColor=_DUCK_COLOR,
      physicsClientId=self._client,
    )
    return pybullet.createMultiBody(0, -1, shape, physicsClientId=self._client)


def _view_matrix(camera: Camera) -> tuple[float, ...]:
  up_axis = 2
  return pybullet.computeViewMatrixFromYawPitchRoll(
    (0.0, 0.0, 0.0), camera.distance, camera.yaw, camera.pitch, 0.0, up_axis
  )
