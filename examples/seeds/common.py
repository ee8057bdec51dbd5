"""Shared by the examples of this folder: the folder for their files, pictures, reports."""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("agg")
import matplotlib.pyplot as plt

SEED = 0


def begin():
    """Seed NumPy; return the folder for files: the argument of the script, or runs/seeds/<name>."""
    np.random.seed(SEED)
    default = Path("runs/seeds") / Path(sys.argv[0]).stem
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save(axes, path):
    """Save the figure of some axes as a PNG and close it."""
    axes.figure.savefig(path, dpi=80)
    plt.close(axes.figure)
    print(f"picture: {path.name}")


def plot_losses(losses, path, title, logy=True, ylabel="loss (mean over the rows)"):
    """Draw curves of losses by name."""
    axes = plt.figure(figsize=(6, 3.5), layout="constrained").add_subplot()
    for name, values in losses.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.set(xlabel="epoch", ylabel=ylabel, title=title, yscale="log" if logy else "linear")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save(axes, path)


def section(title):
    """Print a heading."""
    print(f"\n{title}\n{'-' * len(title)}")


def skipped(reason):
    """Print why a part is left out, and return None."""
    print("skipped:", " ".join(str(reason).split()))
