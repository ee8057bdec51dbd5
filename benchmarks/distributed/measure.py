"""Measures the cost of distribution; docs/distributed.md has the results.

usage: python benchmarks/distributed/measure.py COMMAND

efficiency   2 ranks against 1, beside PyTorch's DistributedDataParallel with Gloo
traffic      bytes of a step beside the least possible
lost         time of a step for 1, 4, 25 and 100 MB of gradients
hidden       what is hidden behind computation, on a link of 2 Gbit/s (as root)
memory       of a rank, without and with zero=1
model        of the time up to 1,024 workers
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
HOSTS = HERE.parent.parent / "tests/distributed/hosts.sh"
TORCH = pathlib.Path.home() / ".cache/onnxgrad/peers/venv-torch/bin/python"
WORKLOADS = {"w3_mlp784": 40, "w5_resnet18": 3, "w6_bert_base_layer": 4}  # and steps


def run(command: Sequence[str], **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def ours(ranks: int, *arguments: str, transport: str = "mpi") -> dict[str, Any]:
    script = [str(HERE / "rank_onnxgrad.py"), *arguments]
    if ranks == 1:
        return run([sys.executable, *script])
    launch = [sys.executable, "-m", "onnxgrad", "launch", "-n", str(ranks)]
    return run([*launch, "--transport", transport, *script])


def apart(*arguments: str) -> float:
    """Two processes that know nothing of each other: what sharing the machine's memory costs."""
    command = [sys.executable, str(HERE / "rank_onnxgrad.py"), *arguments]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return max(one["step_ms"] for one in pool.map(run, [command, command]))


def torch_ddp(ranks: int, *arguments: str) -> dict[str, Any]:
    command = [str(TORCH), str(HERE / "rank_torch.py"), *arguments]
    if ranks == 1:
        return run(command)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    others = [
        subprocess.Popen(
            command, env={**os.environ, **common, "RANK": str(rank)}, stdout=subprocess.DEVNULL
        )
        for rank in range(1, ranks)
    ]
    result = run(command, **common, RANK="0")
    for process in others:
        process.wait()
    return result


def efficiency(names: Sequence[str] = tuple(WORKLOADS)) -> None:
    """Each rank has the workload's batch and one thread: with n ranks n times the rows per step."""
    columns = ("1 rank ms", "2 apart ms", "2 ranks ms", "efficiency", "rows/s of 2")
    print(f"{'workload':<20} {'system':<10} " + "  ".join(f"{column:>11}" for column in columns))
    import workloads

    for name in names:
        batch = workloads.WORKLOADS[name].batch
        best: dict[tuple[str, int], float] = {}
        separate = math.inf
        for _ in range(2):
            separate = min(separate, apart(name, str(WORKLOADS[name])))
            for system, start in (("onnxgrad", ours), ("torch ddp", torch_ddp)):
                if system == "torch ddp" and not TORCH.exists():
                    continue
                for ranks in (1, 2):
                    found = start(ranks, name, str(WORKLOADS[name]))["step_ms"]
                    best[system, ranks] = min(best.get((system, ranks), math.inf), found)
        for system in ("onnxgrad", "torch ddp"):
            if (system, 2) not in best:
                continue
            one, two = best[system, 1], best[system, 2]
            aside = f"{separate:.2f}" if system == "onnxgrad" else "-"
            print(
                f"{name:<20} {system:<10} {one:11.2f}  {aside:>11}  {two:11.2f}  {one / two:11.0%}"
                f"  {2 * batch / two * 1e3:11,.0f}",
                flush=True,
            )


def traffic() -> None:
    """Sent by each rank in a step; the least for a sum that all get is 2 S (n - 1) / n."""
    print("gradients MB  ranks  option      sent MB  least MB")
    for ranks in (2, 4):
        for option in ((), ("bfloat16=1",), ("zero=1",)):
            found = ours(ranks, "gradients:4:4", "3", *option)
            least = 2 * found["gradients_mb"] * (ranks - 1) / ranks
            least /= 2 if option == ("bfloat16=1",) else 1
            print(
                f"{found['gradients_mb']:12.2f}  {ranks:5}  {' '.join(option) or '-':<10} "
                f"{found['sent_mb']:8.3f}  {least:8.3f}",
                flush=True,
            )


def lost() -> None:
    """Dense layers with so many MB of weights; the same rows for each rank as for the one."""
    print("gradients MB  transport  1 rank ms  2 ranks ms  lost ms  of it waiting ms")
    for megabytes, steps in ((1, 60), (4, 30), (25, 8), (100, 3)):
        alone = ours(1, f"gradients:{megabytes}:4", str(steps))["step_ms"]
        for transport in ("mpi", "tcp"):
            found = ours(2, f"gradients:{megabytes}:4", str(steps), transport=transport)
            print(
                f"{megabytes:12}  {transport:<9} {alone:10.2f}  {found['step_ms']:10.2f}  "
                f"{found['step_ms'] - alone:7.2f}  {found['waited_ms']:16.2f}",
                flush=True,
            )


def hidden() -> None:
    """The fraction of the shorter of computation and communication that the step hides.

    Communication is what a step of one row takes beyond its computation, with nothing to hide
    behind.
    """
    mpirun = shutil.which("mpirun", path="/usr/bin") or sys.exit("needs Debian's openmpi-bin")
    subprocess.run([HOSTS, "up", "2", "2gbit"], check=True)
    try:
        hosts = [str(HOSTS), "run", mpirun, "2", "2"]
        script = [str(HERE / "rank_onnxgrad.py"), "gradients:25:20", "5"]
        print("rows  compute ms  step ms  hidden")
        communication = math.inf
        for batch in (1, 16, 64, 160, 320):
            rows = f"batch={batch}"
            computation = run([sys.executable, *script, rows])["step_ms"]
            step = run([*hosts, sys.executable, *script, rows])["step_ms"]
            if batch == 1:
                communication = step - computation
            share = (computation + communication - step) / min(computation, communication)
            print(f"{batch:4}  {computation:10.1f}  {step:7.1f}  {share:6.0%}", flush=True)
    finally:
        subprocess.run([HOSTS, "down"], check=True)


def memory() -> None:
    """Adam: two slots for each weight."""
    print("weights MB  ranks  zero  peak MB of a rank")
    for zero in ("0", "1"):
        found = ours(2, "gradients:100:4", "2", f"zero={zero}", "optimizer=adam")
        print(f"{found['gradients_mb']:10.0f}  {2:5}  {zero:>4}  {found['peak_mb']:17.0f}")


def model(
    line_gbit: float = 10, used: float = 0.8, latency_us: float = 15, overlap: float = 2 / 3
) -> None:
    """Weak scaling: time of a step = computation + what of the communication is not hidden.

    Communication is 2 S (n - 1) / n bytes at `used` of the line's rate, and the latency of the last
    bucket, the others being under way at once: 2 log2(n) times `latency_us`. `overlap` of it is
    hidden behind the backward sweep, at most half of the computation. Not in it: stragglers, which
    cost 5 to 10 % at 1,024 workers.
    """
    jobs = {
        "ResNet-50, 32 images, CPU node (320 ms, 102 MB)": (320, 102),
        "BERT-large, 8 x 512, CPU node (4,100 ms, 1,340 MB)": (4100, 1340),
        "BERT-base layer, 8 x 128, 2 cores (100 ms, 28 MB)": (100, 28),
        "w3: MLP 784-512-512-10, batch 128 (3 ms, 2.7 MB)": (3, 2.7),
    }
    counts = (2, 8, 64, 256, 1024)
    print(
        f"inputs: {line_gbit} Gbit/s, {used:.0%} of it used, {latency_us} us, {overlap:.0%} hidden"
    )
    print(f"{'job for each worker':<52}" + "".join(f"{n:>7}" for n in counts))
    for name, (compute, megabytes) in jobs.items():
        cells = []
        for n in counts:
            transfer = 2 * megabytes * 8 * (n - 1) / n / (line_gbit * used)
            latency = 2 * math.log2(n) * latency_us / 1e3
            shown = transfer + latency - min(overlap * transfer, compute / 2)
            cells.append(f"{compute / (compute + shown):7.0%}")
        print(f"{name:<52}" + "".join(cells))


COMMANDS = {
    function.__name__: function for function in (efficiency, traffic, lost, hidden, memory, model)
}

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent / "peers"))
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    values = sys.argv[2:]
    COMMANDS[sys.argv[1]](
        *([values] if values and sys.argv[1] == "efficiency" else map(float, values))
    )
