"""Signals as a terminal sends them."""

from __future__ import annotations

import signal

# `nohup make test &` has these ignored, and so would be the processes that the tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
