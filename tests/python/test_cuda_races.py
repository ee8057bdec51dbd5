"""The stand-ins of NVIDIA's libraries find races of kernels."""

import os
import subprocess
import sys

import pytest

from support import BUILD

STANDINS = BUILD / "tests/cuda"
pytestmark = pytest.mark.skipif(
    not (STANDINS / "libcuda.so.1").exists(),
    reason="the stand-ins are built with the C++ tests, which this build lacks",
)

# Runs one kernel of `blocks` blocks of 8 threads, whose text is `body`, on 64 integers.
RUN = f"""
import ctypes
import sys

driver = ctypes.CDLL("{STANDINS}/libcuda.so.1")
compiler = ctypes.CDLL("{STANDINS}/libnvrtc.so.13")
body, blocks = sys.argv[1], int(sys.argv[2])
text = '''
static int shared[8];
extern "C" {{
int kernel_words = 1;
void kernel(const void* words) {{
  int* const to = *(int* const*)words;
  const int i = (int)threadIdx.x;
  const int all = (int)(blockIdx.x * 8 + threadIdx.x);
  int local[2] = {{i, all}};
  int* volatile own = local;
  BODY
}}
}}
'''.replace("BODY", body)

def ok(result):
    assert result == 0, result

program, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
stream, memory, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
ok(compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), None, 0, None, None))
options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90")
ok(compiler.nvrtcCompileProgram(program, 1, options))
ok(compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)))
image = ctypes.create_string_buffer(size.value)
ok(compiler.nvrtcGetCUBIN(program, image))
ok(driver.cuInit(0))
ok(driver.cuStreamCreate(ctypes.byref(stream), 1))
ok(driver.cuMemAllocAsync(ctypes.byref(memory), 256, stream))
ok(driver.cuModuleLoadData(ctypes.byref(module), image))
ok(driver.cuModuleGetFunction(ctypes.byref(function), module, b"kernel"))
words = (ctypes.c_uint64 * 1)(memory.value)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(words))
ok(driver.cuLaunchKernel(function, blocks, 1, 1, 8, 1, 1, 0, stream, parameters, None))
ok(driver.cuStreamSynchronize(stream))
"""


def fault_of(body, blocks=1):
    """Return the message of the stand-ins about a kernel; None if there is none."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, body, str(blocks)],
        env={**os.environ, "ONNXGRAD_STANDIN_RACES": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode == 0:
        return None
    assert "stand-in of the driver: kernel: " in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        pytest.param("to[all] = own[1];", 4, id="elements of one thread"),
        pytest.param("to[all] = to[60];", 4, id="reads of one element"),
        pytest.param("shared[i] = i; __syncthreads(); to[i] = shared[7 - i];", 1, id="barrier"),
        pytest.param(
            "shared[i] = all; __syncthreads(); to[all] = shared[7 - i];", 4, id="shared memory"
        ),
        pytest.param(
            "to[i] = i; __syncthreads(); to[i + 8] = to[7 - i]; __syncthreads(); to[7 - i] = i;",
            1,
            id="two barriers",
        ),
    ],
)
def test_kernels_without_races(body, blocks):
    assert fault_of(body, blocks) is None


@pytest.mark.parametrize(
    ("body", "blocks", "part"),
    [
        pytest.param("to[0] = i;", 1, "memory of the card", id="one element"),
        pytest.param("shared[i] = i; to[i] = shared[7 - i];", 1, "shared memory", id="no barrier"),
        pytest.param(
            "shared[i] = i; __syncthreads(); to[i] = shared[7 - i]; shared[i] = 0;",
            1,
            "shared memory",
            id="no barrier behind",
        ),
        pytest.param("to[i] = blockIdx.x;", 2, "of block", id="two blocks"),
        pytest.param(
            "if (all == 0) to[40] = 1; to[all] = to[40];", 2, "block", id="read of another"
        ),
        pytest.param("((char*)to)[i / 2] = 1;", 1, "memory of the card", id="bytes"),
    ],
)
def test_races_are_found(body, blocks, part):
    fault = fault_of(body, blocks)
    assert fault is not None
    assert "without a barrier between" in fault
    assert part in fault
