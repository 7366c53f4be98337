"""The table: its contract, its seeds, what counts as success, and the expert's hand."""

from __future__ import annotations

import numpy as np
import pytest

env_checker = pytest.importorskip("gymnasium.utils.env_checker")

from research.bcz import expert, table_env  # noqa: E402
from t2r_seq import actors, errors  # noqa: E402


def episodes(instructions, noise, num_episodes, seed=0):
  env = table_env.TableEnv(instructions)
  policy = expert.TableExpertPolicy(env, noise=noise)
  found = []
  actors.run_env(env, policy, num_episodes, seed, episode_writer=found.append)
  return found


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_keeps_the_gymnasium_contract():
  env_checker.check_env(table_env.TableEnv(render_mode="rgb_array", image_size=32))


def test_same_seed_same_bytes():
  runs = [episodes(table_env.SEEN, 0.8, 2, seed) for seed in (3, 3, 4)]
  first, again, other = [
    [(step["observation"], step["action"], step["debug"]) for step in run[0]]
    for run in runs
  ]
  np.testing.assert_equal(again, first)
  with pytest.raises(AssertionError):
    np.testing.assert_equal(other, first)


@pytest.mark.parametrize("noise", [0.0, 0.8])
def test_expert_follows_the_instruction(noise):
  found = episodes(table_env.INSTRUCTIONS, noise, 40)
  assert {e[0]["observation"]["instruction"] for e in found} == {
    *table_env.INSTRUCTIONS
  }
  assert np.mean([actors.evaluation.ends_in_success(e) for e in found]) >= (
    0.9 if noise else 1
  )
  differs = [not np.array_equal(s["action"], s["debug"]) for e in found for s in e]
  assert (0.1 < np.mean(differs) < 0.6) if noise else not any(differs)
  space = table_env.TableEnv().action_space
  assert all(space.contains(step["debug"]) for e in found for step in e)


def test_no_verb_succeeds_by_the_way_of_another():
  env = table_env.TableEnv()
  policy = expert.TableExpertPolicy(env)
  for done in table_env.INSTRUCTIONS:
    env.reset(seed=7)
    env.instruction, is_done, others = done, False, set()
    while not is_done:
      action = policy.SelectAction(None)
      is_done = env.step(action)[2]
      for other in table_env.INSTRUCTIONS:
        env.instruction = other
        if env.is_success:
          others.add(other)
      env.instruction = done
    assert others == {done}


def test_held_out_instructions_are_of_known_verbs_and_blocks():
  words = [{text.split()[i] for text in table_env.SEEN} for i in (0, 2)]
  assert not {*table_env.SEEN} & {*table_env.HELD_OUT}
  assert all(t.split()[0] in words[0] for t in table_env.HELD_OUT)
  assert all(t.split()[2] in words[1] for t in table_env.HELD_OUT)
  with pytest.raises(errors.SpecError, match=r"got \[lift the red block\]"):
    table_env.TableEnv(["lift the red block"])
