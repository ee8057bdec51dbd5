"""Compiles texts of kernels with the real NVRTC, for cards of several compute capabilities.

`python scripts/cuda_texts.py FOLDER [--sample N] [--architectures 75,80,90,100]`; the stand-in of
NVRTC writes the folder (ONNXGRAD_STANDIN_TEXTS). The library comes from its wheel
(nvidia-cuda-nvrtc) or CUDA's toolkit; without one nothing is compiled, which is said. A card is not
needed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import functools
import os
import sys
from pathlib import Path

_PLACES = [
    *(Path(entry) / "nvidia" for entry in sys.path if entry),
    Path("/usr/local/cuda"),
]


def find_library() -> Path | None:
    """Return the newest NVRTC of the first place that has one."""
    for place in _PLACES:
        for pattern in ("*/lib/libnvrtc.so.1?", "lib64/libnvrtc.so.1?", "*/*/lib/libnvrtc.so.1?"):
            if found := sorted(place.glob(pattern)):
                return found[-1]
    return None


@functools.cache
def _library() -> ctypes.CDLL:
    path = find_library()
    assert path is not None
    return ctypes.CDLL(str(path))


def compile_text(path: Path, architecture: str) -> str:
    """Return the compiler's messages; empty: the text has been compiled."""
    nvrtc = _library()
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    options = [f"--gpu-architecture=sm_{architecture}", *first.split()[1:]]
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), given) == 0:
            return ""
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        return f"{path.name} for sm_{architecture}:\n{log.value.decode()}"
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def main() -> int:
    """Compile the texts; return 1 if one is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="so many of them; 0: all")
    parser.add_argument("--architectures", default="75,80,90,100")
    arguments = parser.parse_args()
    library = find_library()
    if library is None:
        print("NVRTC is not there (wheel nvidia-cuda-nvrtc): no text was compiled")
        return 0
    texts = sorted(arguments.folder.glob("*.cu"))
    if not texts:
        sys.exit(f"{arguments.folder} has no texts: run the tests on the stand-ins first")
    if 0 < arguments.sample < len(texts):
        texts = texts[:: len(texts) // arguments.sample][: arguments.sample]
    work = [(text, one) for text in texts for one in arguments.architectures.split(",")]
    # Processes, because NVRTC compiles one program at a time.
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        logs = pool.map(compile_text, *zip(*work, strict=True), chunksize=8)
        refused = [log for log in logs if log]
    print(*refused, sep="\n")
    print(f"{len(texts)} texts, {len(work)} compilations by {library.name}, {len(refused)} refused")
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main())
