"""Runs commands in processes that are forked from one which has imported `onnxgrad.cli`.

A command spends nearly all of its time on imports; here it starts in milliseconds. Everything else
is its own: arguments, folder, variables, streams, exit status. Tests of the start itself, of
signals and of streams that fail start processes of their own.

As a program, `python forking.py DESCRIPTOR`, this file is that process. It must have one thread:
pandas, for one, starts others.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MESSAGE = 1 << 17  # bytes: arguments and variables


def run_module(
    module: str, *arguments: object, cwd: object = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module arguments``; for one of onnxgrad's."""
    channel = _server()
    argv = [module, *map(str, arguments)]
    request = {"argv": argv, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        message = json.dumps(request).encode()
        socket.send_fds(channel, [message], [out.fileno(), err.fileno()])
        process = int(channel.recv(64))
        channel.settimeout(timeout)
        try:
            status = int(channel.recv(64))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            channel.settimeout(None)
            channel.recv(64)
            raise
        channel.settimeout(None)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(argv, status, *texts)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = theirs.fileno()
    command = [sys.executable, __file__, str(descriptor)]
    paths = os.pathsep.join(filter(None, sys.path))
    # NumPy starts no threads of its own.
    variables = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, pass_fds=[descriptor], env=variables)
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(channel: socket.socket) -> dict:
    """Fork a process for each request; return the request in that process."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE, 2)
        if not message:
            sys.exit()
        process = os.fork()
        if process == 0:
            channel.close()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, descriptor in enumerate([nothing, *descriptors]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return json.loads(message)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(process).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            channel.send(str(status).encode())


def _main() -> None:
    import runpy

    import typer.main

    import onnxgrad.cli

    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(onnxgrad.cli.app)
    with contextlib.suppress(ImportError):  # new versions of typer convert values by it
        import pydantic

        pydantic.TypeAdapter(int)
    assert len([*Path("/proc/self/task").iterdir()]) == 1
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    request = _serve(channel)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.path[0] = request["cwd"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
