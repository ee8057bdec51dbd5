"""Kills ranks of a training on three hosts at random times; `make dist-kills`.

    python tests/distributed/kills.py [KILLS]

Each time one rank is killed (SIGKILL), the job must end by itself with a status other than 0, and
`--resume auto` continues from the newest complete checkpoint. At the end the weights must equal, to
the last bit, those of a training that was not interrupted. The hosts are network namespaces (root);
without them the ranks are on this host, and start with own TCP.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

HOSTS = Path(__file__).with_name("hosts.sh")
RANKS = 3
MODEL = """
<ir_version: 10, opset_import: ["": 21]>
mlp (float[N, 16] x) => (float[N, 1] out)
<float[16, 64] w1, float[64] b1, float[64, 1] w2, float[1] b2>
{
  h = Gemm(x, w1, b1)
  r = Relu(h)
  out = Gemm(r, w2, b2)
}
"""


def write_inputs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    for name, shape in (("w1", (16, 64)), ("b1", (64,)), ("w2", (64, 1)), ("b2", (1,))):
        values = (rng.normal(size=shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    kept = [value for value in model.graph.input if value.name == "x"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, folder / "model.onnx")
    X = rng.normal(size=(600, 16)).astype(np.float32)
    np.savez(folder / "rows.npz", x=X, y=np.tanh(X[:, :1]).astype(np.float32))


def command(folder: Path, run: str, epochs: int) -> list[str]:
    train = [sys.executable, "-m", "onnxgrad", "train", str(folder / "model.onnx")]
    train += ["--data", str(folder / "rows.npz"), "--target", "y", "--batch-size", "24", "-q"]
    train += ["--optimizer", "adam", "--lr", "0.001", "--epochs", str(epochs)]
    train += ["--checkpoint-every", "11", "--run-dir", str(folder / run), "--resume", "auto"]
    train += ["-o", str(folder / f"{run}.onnx"), "--threads", "1"]
    if has_hosts():
        return [str(HOSTS), "run", "/usr/bin/mpirun", str(RANKS), str(RANKS), *train]
    launch = [sys.executable, "-m", "onnxgrad", "launch", "-n", str(RANKS), "--transport", "tcp"]
    return [*launch, *train[3:]]


def has_hosts() -> bool:
    why = subprocess.run([HOSTS, "why-not"], capture_output=True, text=True, check=True).stdout
    return not why and Path("/usr/bin/mpirun").exists()


def ranks_of(token: str) -> list[int]:
    """Processes of the job: those with its token that are a rank."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            program = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"ONNXGRAD_KILLS={token}".encode() not in environment or b"\0train\0" not in program:
            continue
        if b"mpirun" not in program and b"launch" not in program:
            is_rank = any(v.startswith((b"OMPI_COMM_WORLD_RANK=", b"RANK=")) for v in environment)
            if is_rank and entry.name.isdigit():
                found.append(int(entry.name))
    return found


def kill_once(arguments: list[str], run: Path, rng: random.Random) -> str:
    """Start the job, kill one rank some time after it has begun; return what was seen."""
    token = f"{os.getpid()}-{rng.random()}"
    environment = {**os.environ, "ONNXGRAD_KILLS": token, "OMPI_MCA_orte_abort_timeout": "10"}
    checkpoints = run / "checkpoints"
    before = newest(checkpoints)
    started = time.time()
    process = subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    # Until the training has begun: Open MPI 4.1 itself may hang if a rank dies in MPI_Init.
    deadline = time.monotonic() + 120
    while not has_begun(run, started) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    wait = rng.uniform(0.0, 2.0)
    time.sleep(wait)
    victims = ranks_of(token)
    if not victims:
        return f"ended by itself: {process.communicate()[1][-2000:]}"
    os.kill(rng.choice(victims), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=120)
    if process.returncode == 0:
        return "the job ended with status 0 after a kill"
    left = ranks_of(token)
    if left:
        return f"ranks are left: {left}"
    after = newest(checkpoints)
    if before is not None and (after is None or after < before):
        return f"checkpoint {before} is gone, the newest is {after}"
    named = "signal 9" in errors or "rank" in errors
    print(
        f"killed after {wait:4.1f} s, job ended {time.monotonic() - killed:4.1f} s later, "
        f"newest checkpoint {after}{'' if named else ', NOT NAMED'}",
        flush=True,
    )
    return "" if named else "the message names no rank: " + errors[-2000:]


def has_begun(run: Path, started: float) -> bool:
    """Whether the training that started then has written to its log."""
    log = run / "train.log"
    return log.exists() and log.stat().st_mtime >= started


def newest(checkpoints: Path) -> str | None:
    names = sorted(path.name for path in checkpoints.glob("ck-*") if "tmp" not in path.name)
    return names[-1].split(".")[0] if names else None


def finish(folder: Path, run: str, epochs: int) -> bytes:
    done = subprocess.run(
        command(folder, run, epochs), capture_output=True, text=True, check=False, timeout=580
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command(folder, run, epochs))}\n{done.stderr}")
    return (folder / f"{run}.onnx").read_bytes()


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rng = random.Random(1)
    where = "3 hosts (network namespaces)" if has_hosts() else "this host, own TCP"
    print(f"{kills} kills, {RANKS} ranks on {where}", flush=True)
    if has_hosts():
        subprocess.run([HOSTS, "up", str(RANKS)], check=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_inputs(folder)
            for _ in range(kills):
                problem = kill_once(command(folder, "killed", 1_000_000), folder / "killed", rng)
                if problem:
                    sys.exit(f"FAILED: {problem}")
            step = int((newest(folder / "killed" / "checkpoints") or "ck-0").split("-")[1])
            epochs = step // (600 // 24) + 2
            resumed = finish(folder, "killed", epochs)
            print(f"finished after {epochs} epochs; now without kills", flush=True)
            whole = finish(folder, "whole", epochs)
            if resumed != whole:
                sys.exit("FAILED: the weights differ from those of the training without kills")
            print(f"{kills} kills: nothing lost, the weights of {epochs} epochs are the same bits")
    finally:
        if has_hosts():
            subprocess.run([HOSTS, "down"], check=True)


if __name__ == "__main__":
    main()
