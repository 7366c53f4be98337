"""The scene: projection of positions, and what its pixels show."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pybullet")

from research.pose_env import scene as scene_lib


@pytest.fixture
def scene():
  made = scene_lib.Scene()
  yield made
  made.close()


PLACES = {
  "middle": (0.0, 0.0, 0.0),
  "far corner": (0.7, 0.7, 20.0),
  "near corner": (-0.7, -0.7, -20.0),
  "side": (-0.8, 0.2, 10.0),
}


@pytest.mark.parametrize("name", PLACES)
def test_to_pixels_points_at_the_duck(name, scene):
  x, y, yaw = PLACES[name]
  camera = scene_lib.Camera(yaw, -55.0, 3.6)
  scene.place_duck(x, y, 0.0)
  frame = scene.render(camera).astype(int)
  duck = (frame[..., 0] > 150) & (frame[..., 1] > 90) & (frame[..., 2] < 80)
  rows, columns = np.nonzero(duck)
  column, row = scene.to_pixels(camera, x, y)
  # The duck stands on (x, y): its middle is a little above.
  assert column == pytest.approx(columns.mean(), abs=3.0)
  assert row - 7.0 < rows.mean() < row + 1.0


def test_close_ends_the_scene(scene):
  scene.close()
  with pytest.raises(RuntimeError, match=r"Scene: used after close\(\)"):
    scene.render(scene_lib.Camera(0.0, -55.0, 3.6))
