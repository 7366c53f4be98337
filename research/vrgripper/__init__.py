"""Imitation of a gripper, as in VRGripper and Watch-Try-Learn, over a drawn table."""
