"""A thread that leaves cores to others does so alone."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.run.processes import lower_thread_priority


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
def test_only_the_thread_itself_stands_behind() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    usual = niceness()
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as threads:
        assert threads.submit(niceness).result() == min(19, usual + 10)
    assert niceness() == usual
