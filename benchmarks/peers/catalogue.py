"""The list of the systems that are measured, and the parsing of a user's choice."""

from __future__ import annotations

import dataclasses
import difflib

import workloads

RULER = "floor-xsmm"  # not a peer: a hand-written loop for one workload, see floor.cpp
RULER_WORKLOAD = "w2_mlp"


class UsageError(Exception):
    """An unknown name; the message suggests similar ones."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One system: where its Python is, which script drives it, what it can train."""

    environment: str  # key of environments.REQUIREMENTS, or "project" for the repository's .venv
    script: str
    families: tuple[str, ...] = ()  # "w1" for w1_linreg2 and w1_linreg100…; () is all
    default: bool = True  # measured without being asked for
    exact: bool = True  # algorithm of the others, so that losses are compared
    compiles: bool = False  # first start is slow and cached on disk: measured once, cold


DENSE = ("w1", "w2", "w3")
IMAGES = ("w4", "w5", "w8")
LARGE = ("w3", "w4", "w5", "w6", "w7", "w8")
PEERS: dict[str, Entry] = {
    "onnxgrad": Entry("project", "peer_onnxgrad.py"),
    "sklearn": Entry("sklearn", "peer_sklearn.py", DENSE),
    "sklearn-sgd": Entry("sklearn", "peer_sklearn.py", ("w1",), default=False, exact=False),
    "ort-api": Entry("ort", "peer_ort.py"),
    "ort-agent": Entry("ort", "peer_ort.py", ("w1", "w2", "w4", "w5", "w8")),
    "torch-eager": Entry("torch", "peer_torch.py", default=False),
    "torch-eager-cl": Entry("torch", "peer_torch.py", IMAGES, default=False),
    "torch-compile": Entry("torch", "peer_torch.py", default=False, compiles=True),
    "torch-compile-cl": Entry("torch", "peer_torch.py", IMAGES, default=False, compiles=True),
    "onnxgrad-bf16": Entry("project", "peer_onnxgrad.py", LARGE, default=False, exact=False),
    "torch-bf16": Entry("torch", "peer_torch.py", LARGE, default=False, exact=False),
    "torch-bf16-cl": Entry("torch", "peer_torch.py", IMAGES, default=False, exact=False),
    "jax-jit": Entry("jax", "peer_jax.py"),
    "jax-scan": Entry("jax", "peer_jax.py", DENSE),
}
ORDER = [*PEERS, RULER]


def position(name: str) -> int:
    """Position of a system in the tables; unknown ones come last."""
    return ORDER.index(name) if name in ORDER else len(ORDER)


def trains(peer: str, workload: str) -> bool:
    """Whether a system takes part in a workload."""
    if peer == RULER:
        return workload == RULER_WORKLOAD
    families = PEERS[peer].families if peer in PEERS else ()
    return not families or workload.split("_")[0] in families


def check_names(kind: str, names: list[str], known: list[str]) -> list[str]:
    """`names` without blanks; raises UsageError, with similar names, for an unknown one."""
    names = [name.strip() for name in names if name.strip()]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see the list below."
            raise UsageError(f"unknown {kind} '{name}': {hint}\n  known: {', '.join(known)}")
    if not names:
        raise UsageError(f"no {kind} named; known: {', '.join(known)}")
    return names


def choose_peers(text: str | None) -> list[str]:
    """The systems that `text` names: a list "a,b", "all", or None for the default ones."""
    if not text:
        return [name for name in ORDER if name == RULER or PEERS[name].default]
    if text == "all":
        return list(ORDER)
    return check_names("peer", text.split(","), ORDER)


def choose_workloads(text: str | None) -> list[str]:
    """The workloads that `text` names: a list "a,b", "all", or None for the default ones."""
    if not text:
        return list(workloads.DEFAULT_WORKLOADS)
    if text == "all":
        return list(workloads.WORKLOADS)
    return check_names("workload", text.split(","), list(workloads.WORKLOADS))
