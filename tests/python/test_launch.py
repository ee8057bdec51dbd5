"""`onnxgrad launch`, and the connection of the processes that it starts."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onnxgrad.cli.exit_status import EXIT_REQUEUE
from onnxgrad.cli.launching import LaunchOptions, find_mpirun, launch, mpirun_command
from onnxgrad.cli.spelling import LAUNCH_VARIABLE, continuation
from onnxgrad.distributed import connect
from onnxgrad.errors import DeviceError, OptionError

SCRIPT = """
import os, sys, time
import onnxgrad as og
def say(*words):  # ranks share the pipe: print() to an unbuffered one writes word by word
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
workers = og.distributed.connect(timeout=30)
texts = workers.gather(f"{workers.rank}/{workers.size}")
chosen = workers.broadcast(f"from {workers.rank}", root=1)
if workers.rank == 0:
    say("start", os.environ["ONNXGRAD_RESTART"], *texts, chosen, len(set(workers.hosts)))
    say("transport", workers.transport.split()[0], "local", workers.local_size)
"""
FAILS_ONCE = """
workers.barrier()
if workers.rank == 1 and os.environ["ONNXGRAD_RESTART"] == "0":
    sys.exit(9)
workers.barrier()
"""


def mpirun() -> str:
    try:
        return find_mpirun()[0]
    except DeviceError as error:
        pytest.skip(error.what)


def run_launch(tmp_path: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "onnxgrad", "launch", "-n", "2", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("transport", ["tcp", "mpi"])
def test_ranks_find_each_other(tmp_path, transport):
    if transport == "mpi":
        mpirun()
    done = run_launch(tmp_path, SCRIPT, "--transport", transport)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "start 0 0/2 1/2 from 1 1"
    assert f"transport {'TCP' if transport == 'tcp' else ''}" in done.stdout
    assert "local 2" in done.stdout


@pytest.mark.parametrize("transport", ["tcp", "mpi"])
def test_a_rank_that_fails_ends_the_job_which_starts_again(tmp_path, transport):
    if transport == "mpi":
        mpirun()
    options = ("--transport", transport)
    done = run_launch(tmp_path, SCRIPT + FAILS_ONCE, *options, "--restarts", "1")
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stderr
    assert "the job ended with status 9; restart 1 of 1" in done.stderr
    assert "start 1 0/2 1/2" in done.stdout


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1", "9", "9"),  # a script lost the rank that failed
        ("7", "4", "4"),  # a command of onnxgrad did
        ("7", "-9", "137"),  # rank 1 was killed
        ("9", "1", "9"),
        ("9", "4", "9"),
        ("7", "1", "7"),
        ("7", "0", "7"),
        ("0", "4", "4"),
    ],
)
def test_the_rank_that_failed_gives_the_status(tmp_path, capfd, first, second, expected):
    """Whichever of the two is seen to end first: a rank that loses another may end before it."""
    script = f"""
import os, signal, sys, time
rank = int(os.environ["RANK"])
time.sleep(0.5 * rank)
status = [{first}, {second}][rank]
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    status = launch([str(path)], LaunchOptions(ranks=2, transport="tcp"))
    errors = capfd.readouterr().err
    assert status == int(expected), errors
    assert f"ended with status {expected}" in errors


@pytest.mark.parametrize(("transport", "number"), [("tcp", "SIGUSR1"), ("mpi", "SIGTERM")])
def test_signals_reach_the_ranks_as_sigusr1(tmp_path, transport, number):
    if transport == "mpi":
        mpirun()
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT
        + f"""
import signal
def end(*_):
    say("rank", workers.rank, "ends")
    sys.exit({EXIT_REQUEUE})
signal.signal(signal.SIGUSR1, end)
workers.barrier()
say("ready")
time.sleep(60)
"""
    )
    command = [sys.executable, "-m", "onnxgrad", "launch", "-n", "2"]
    command += ["--transport", transport, "--restarts", "1", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        ready = 0
        while ready < 2:
            ready += next(lines).strip() == "ready"
        process.send_signal(signal.Signals[number])
        rest = "".join(lines)
    assert process.returncode == EXIT_REQUEUE
    assert "rank 0 ends" in rest
    assert "rank 1 ends" in rest


@pytest.mark.parametrize("signalled", [[0], [1], [0, 1]])
def test_a_signal_to_any_rank_ends_all_with_a_checkpoint(tmp_path, linear_file, signalled):
    """The others learn of it with the next step, and ranks get a signal at different moments."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=X, y=X[:, :1])
    train = [
        sys.executable,
        "-m",
        "onnxgrad",
        "train",
        linear_file,
        "--data",
        tmp_path / "rows.npz",
    ]
    train += ["--target", "y", "--epochs", "1000000", "--batch-size", "8", "--threads", "1", "-q"]
    train += ["--run-dir", tmp_path / "run", "--checkpoint-every", "50", "--resume", "auto"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            list(map(str, train)),
            env={**os.environ, **job, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    folder = tmp_path / "run" / "checkpoints"
    while not list(folder.glob("ck-*")):
        assert [rank.poll() for rank in ranks] == [None, None], ranks[0].communicate()
        time.sleep(0.02)
    for rank in signalled:
        ranks[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.003)
    ended = [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks]
    assert [status for _, status in ended] == [EXIT_REQUEUE] * 2, ended
    assert "continue with" in ended[0][0]


HANGS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.write(1, f"{os.getpid()}\\n".encode())
time.sleep(120)
"""


def start_hanging(tmp_path: Path, transport: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start two ranks that ignore signals; return the launcher and the ranks' processes."""
    script = tmp_path / "script.py"
    script.write_text(HANGS)
    command = [sys.executable, "-m", "onnxgrad", "launch", "-n", "2", "--transport", transport]
    process = subprocess.Popen(
        [*command, "--restarts", "3", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, [int(next(iter(process.stdout.readline, ""))) for _ in range(2)]


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("transport", ["tcp", "mpi"])
@pytest.mark.parametrize(
    ("numbers", "status"),
    [((signal.SIGINT, signal.SIGINT), 130), ((signal.SIGTERM, signal.SIGUSR1), 143)],
)
def test_a_second_signal_ends_ranks_that_ignore_the_first(tmp_path, transport, numbers, status):
    if transport == "mpi":
        mpirun()
    launcher, ranks = start_hanging(tmp_path, transport)
    with launcher:
        os.kill(ranks[1], signal.SIGSTOP)  # this one cannot even ignore them
        launcher.send_signal(numbers[0])
        time.sleep(0.3)
        if transport == "tcp":
            assert launcher.poll() is None
        launcher.send_signal(numbers[1])
        error = launcher.communicate(timeout=30)[1]
    assert launcher.returncode == status, error
    assert not any(is_running(rank) for rank in ranks)
    assert "restart" not in error


@pytest.mark.parametrize("transport", ["tcp", "mpi"])
def test_ranks_end_when_their_launcher_is_killed(tmp_path, transport):
    if transport == "mpi":
        mpirun()
    launcher, ranks = start_hanging(tmp_path, transport)
    with launcher:
        launcher.kill()
        launcher.wait()
        for _ in range(1000):
            if not any(is_running(rank) for rank in ranks):
                break
            time.sleep(0.02)
    assert not any(is_running(rank) for rank in ranks)


def test_without_mpirun_a_job_of_one_host_goes_by_tcp(tmp_path, monkeypatch):
    def no_mpirun(given: str | None = None) -> tuple[str, str]:
        raise DeviceError(what="there is no mpirun on this host")

    monkeypatch.setattr("onnxgrad.cli.launching.find_mpirun", no_mpirun)
    script = tmp_path / "script.py"
    script.write_text("import os, sys; sys.exit(10 + len(os.environ['ONNXGRAD_JOB_TOKEN']))")
    assert launch([str(script)], LaunchOptions(ranks=2)) == 10 + 32
    with pytest.raises(DeviceError, match="no mpirun"):
        launch([str(script)], LaunchOptions(hosts="a:1,b:1"))


def test_the_line_to_continue_a_run_launches_it_again(monkeypatch):
    assert continuation("run") == "continue with: onnxgrad train --resume run"
    monkeypatch.setenv(LAUNCH_VARIABLE, "launch -n 2 --transport tcp")
    expected = "continue with: onnxgrad launch -n 2 --transport tcp train --resume 'a run'"
    assert continuation("a run") == expected


def test_ranks_without_a_secret_are_warned_of():
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert "Set ONNXGRAD_JOB_TOKEN" in connect_in(variables).stderr
    assert "ONNXGRAD_JOB_TOKEN" not in connect_in({**variables, "ONNXGRAD_JOB_TOKEN": "s"}).stderr


def test_commands_are_made_for_each_family():
    options = LaunchOptions(hosts="a:2,b:2", mpirun_options=["--verbose"])
    command = mpirun_command("mpirun", "openmpi", ["python", "x.py"], 4, options)
    assert command[:3] == ["mpirun", "-n", "4"]
    assert command[command.index("-H") + 1] == "a:2,b:2"
    assert command[command.index("mpi_yield_when_idle") + 1] == "1"
    assert command[command.index("--bind-to") + 1] == "none"
    assert "PATH" in command[command.index("-x") + 1 :]
    assert command[-3:] == ["--verbose", "python", "x.py"]
    command = mpirun_command("mpirun", "mpich", ["python", "x.py"], 4, options)
    assert command[command.index("-hosts") + 1] == "a:2,b:2"


def test_what_a_launch_needs():
    with pytest.raises(OptionError, match="neither -n nor -H"):
        launch(["train"], LaunchOptions())
    with pytest.raises(OptionError, match="expected host:ranks"):
        launch(["train"], LaunchOptions(hosts="a:x"))
    with pytest.raises(OptionError, match="the command is missing"):
        launch([], LaunchOptions(ranks=2))
    with pytest.raises(OptionError, match="this host only"):
        launch(["x.py"], LaunchOptions(hosts="a:1", transport="tcp"))
    with pytest.raises(OptionError, match="transport"):
        launch(["x.py"], LaunchOptions(ranks=1, transport="carrier pigeon"))
    with pytest.raises(DeviceError, match="cannot be run"):
        launch(["x.py"], LaunchOptions(ranks=1, mpirun="/nonexistent/mpirun"))
    with pytest.raises(DeviceError, match="neither of Open MPI nor of MPICH"):
        launch(["x.py"], LaunchOptions(ranks=1, mpirun="/bin/echo"))


def connect_in(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Connect in a process with these variables; print the number of workers."""
    script = "import onnxgrad as og; print(og.distributed.connect(timeout=1).size)"
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_several_ranks_without_a_transport_are_refused():
    # A launcher of MPICH, but no library of it.
    done = connect_in({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert done.returncode == 1
    assert "mpirun of MPICH started 2 ranks, but no MPI library was found" in done.stderr
    assert "pip install mpich" in done.stderr
    done = connect_in({"RANK": "0", "WORLD_SIZE": "2"})
    assert "nothing says where rank 0 is" in done.stderr
    assert "MASTER_ADDR" in done.stderr


def test_ranks_that_do_not_come_are_named():
    variables = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    begin = time.monotonic()
    done = connect_in(variables)
    assert "ranks 1, 2 of 3 did not connect to rank 0 within 1 s" in done.stderr
    assert time.monotonic() - begin < 30


def test_an_allocation_alone_is_no_job():
    # A batch script of SLURM that calls python without srun.
    done = connect_in({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"})
    assert done.stdout == "1\n"


def test_one_worker():
    workers = connect("off")
    assert (workers.rank, workers.size, workers.local_size) == (0, 1, 1)
    assert workers.threads >= 1
    assert workers.gather("a") == ["a"]
    assert workers.broadcast("a") == "a"
    workers.barrier()
    workers.stop(1, "does nothing")
    assert repr(workers).startswith("Workers(rank=0, size=1, host=")
    with pytest.raises(OptionError, match="unknown"):
        connect("smoke signals")
    with pytest.raises(OptionError, match="timeout"):
        connect(timeout=0)
