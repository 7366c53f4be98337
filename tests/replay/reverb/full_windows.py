"""Servers and clients of full windows, whose items have one length."""

import functools

from t2r_seq.replay import reverb

ReplayServer = functools.partial(reverb.ReplayServer, padding="drop")
ReverbReplay = functools.partial(reverb.ReverbReplay, padding="drop")
