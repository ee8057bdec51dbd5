"""The processes of a job on this host: they end with this one, and get its signals."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from onnxgrad.base.messages import print_stderr
from onnxgrad.cli.exit_status import EXIT_REQUEUE, EXIT_STATUS, UNCAUGHT
from onnxgrad.errors import DeviceError

__all__ = ["JobProcesses"]

# Exit statuses of ranks that have lost another one: of a script, and of a command of onnxgrad.
_CONSEQUENCES = {UNCAUGHT, EXIT_STATUS[DeviceError]}
# Signals that ask the job to end.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_PATIENCE_S = 3.0  # between a second signal and the end of all
_PR_SET_PDEATHSIG = 1  # constant of <sys/prctl.h>


class JobProcesses:
    """Starts processes, hands signals on to them, and waits for all.

    Each process leads a process group of its own, so a Ctrl-C in the terminal reaches this process
    alone, which hands it on as it does with SIGTERM, SIGUSR1 and SIGHUP. The first signal asks the
    ranks to end, the second one ends them within five seconds, whatever they do. When this process
    is killed, the kernel ends those that it started.

    Parameters
    ----------
    death_signal : signal.Signals
        How processes end that lose this one: SIGKILL for ranks, SIGTERM for mpirun, which then ends
        its ranks.

    Attributes
    ----------
    ended_by : signal.Signals or None
        The first signal that arrived.
    """

    def __init__(self, death_signal: signal.Signals) -> None:
        self.ended_by: signal.Signals | None = None
        self._death_signal = death_signal
        self._processes: list[subprocess.Popen[Any]] = []
        self._kill_at = math.inf
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> JobProcesses:
        for number in _ENDING:
            self._before[number] = signal.signal(number, self._end)
        for number in (signal.SIGTSTP, signal.SIGCONT):
            self._before[number] = signal.signal(number, self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                _signal_group(process, signal.SIGKILL)
                process.wait()
        for number, handler in self._before.items():
            # A signal more, after the job has ended, must not change the status of this process.
            is_over = self.ended_by is not None and number in _ENDING
            signal.signal(number, signal.SIG_IGN if is_over else handler)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one process."""
        # Another process group than the terminal's must not read from it: it would be stopped.
        stdin = subprocess.DEVNULL if os.isatty(0) else None
        self._processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                process_group=0,
                preexec_fn=_ends_with_parent(self._death_signal),  # there are no threads here
            )
        )

    def wait(self) -> int:
        """Wait for all; once one has failed, give the others a moment and end them.

        Returns the status of the rank that failed first. The others fail because they lose it, and
        may be seen to end before it: a status that cannot come from that replaces one that can.
        After a second signal, the status is that of the first one (130 for Ctrl-C).
        """
        patience = 5.0
        status, deadline, are_killed = 0, math.inf, False
        running = dict(enumerate(self._processes))
        while running:
            for rank, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[rank]
                ended = _status(process.returncode)
                is_first = status == 0 or (status in _CONSEQUENCES and ended not in _CONSEQUENCES)
                if ended == 0 or are_killed or not is_first:
                    continue
                status, deadline = ended, min(deadline, time.monotonic() + patience)
                if ended != EXIT_REQUEUE and len(self._processes) > 1:
                    print_stderr(f"onnxgrad: rank {rank} ended with status {ended}")
            now = time.monotonic()
            if now > self._kill_at or (now > deadline and status != EXIT_REQUEUE):
                are_killed = True
                for process in running.values():
                    _signal_group(process, signal.SIGKILL)
            time.sleep(0.02)
        # mpirun that is interrupted ends its ranks by itself, with a status of its own.
        is_cut = self._kill_at < math.inf or (status == 1 and self._death_signal != signal.SIGKILL)
        if self.ended_by is not None and is_cut:
            return 128 + self.ended_by
        return status

    def _end(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        running = [process for process in self._processes if process.poll() is None]
        if self.ended_by is not None:
            if self._kill_at == math.inf:
                print_stderr("onnxgrad: a second signal: all ranks are ended")
                self._kill_at = time.monotonic() + _PATIENCE_S
            if self._death_signal != signal.SIGKILL:  # mpirun ends its ranks itself
                for process in running:
                    process.send_signal(self._death_signal)
            return
        self.ended_by = received
        for process in running:
            if received == signal.SIGINT:
                _signal_group(process, received)  # like the terminal
            else:
                # SIGUSR1, since mpirun kills its ranks soon after a SIGTERM.
                to_send = signal.SIGUSR1 if received == signal.SIGTERM else received
                process.send_signal(to_send)

    def _pause(self, number: int, _frame: FrameType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                _signal_group(process, signal.Signals(number))
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _ends_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a new process calls so that it gets `number` when its parent ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def set_up() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os._exit(128 + number)

    return set_up


def _status(returned: int) -> int:
    return 128 - returned if returned < 0 else returned
