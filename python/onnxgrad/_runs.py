"""Run folders: what a training on the command line leaves, and what it goes on from.

``config.toml`` has the options, ``environment.txt`` the versions, ``metrics.csv`` a line for each
epoch, ``checkpoints`` the files that ``--resume`` goes on from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgrad._run_description import write_description
from onnxgrad.callbacks import Callback, Checkpoint, Logs
from onnxgrad.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from onnxgrad.trainer import Trainer

_PATHS = ("model", "data", "output", "validation", "history")


class RunFolder:
    """A folder for one training.

    Parameters
    ----------
    path : path
    is_new : bool
        Whether the folder must not be that of another training.

    Raises
    ------
    CheckpointError
        The folder cannot be made or read.
    OptionError
        A new training in the folder of another one, or nothing to resume.
    """

    def __init__(self, path: str, *, is_new: bool) -> None:
        self.path = Path(path)
        self._config = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"
        if is_new and self._config.exists():
            raise OptionError(
                what=f"--run-dir: '{path}' is the folder of another training",
                value="--run-dir",
                mend=f"Go on with it by --resume {path}, or choose another folder.",
            )
        if not is_new and not self._config.is_file():
            raise OptionError(
                what=f"--resume: '{path}' is not the folder of a training",
                value="--resume",
                mend="Give the --run-dir of an earlier training.",
            )

    def begin(self, options: Mapping[str, Any]) -> None:
        """Make the folder and write down the options."""
        try:
            write_description(self.path, options)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def options(self) -> dict[str, Any]:
        """Return the options of the training that the folder belongs to."""
        import tomllib

        try:
            return tomllib.loads(self._config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                what=f"cannot read '{self._config}': {error}", file=str(self._config)
            ) from error

    def callbacks(self, every: int | None, keep: int) -> list[Callback]:
        """Return what writes checkpoints and metrics during `fit`."""
        saver = Checkpoint(self.checkpoints, every="epoch" if every is None else every, keep=keep)
        return [saver, _MetricsFile(self.path / "metrics.csv")]


class _MetricsFile(Callback):
    """A CSV file with one line per epoch, there as soon as the epoch is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_begun = False

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Add a line; at first write those of epochs before a resumption, too."""
        try:
            if not self._is_begun:
                trainer.history.to_csv(self._path)
                self._is_begun = True
                return
            with self._path.open("a", encoding="utf-8") as file:
                file.write(trainer.history.csv_line(logs) + "\n")
        except OSError as error:
            raise _cannot_write(self._path, error) from error


def _cannot_write(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(what=f"cannot write '{path}': {error.strerror}", file=str(path))


def stored_options(options: Mapping[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    """Return options as they are written down: without those that are not set, paths in full."""
    stored = {}
    for name, value in options.items():
        if name in without or value is None:
            continue
        is_path = name in _PATHS and isinstance(value, str) and not _is_number(value)
        stored[name] = str(Path(value).absolute()) if is_path else value
    return stored


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
