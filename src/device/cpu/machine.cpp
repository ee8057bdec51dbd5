#include "device/machine.h"

#include <unistd.h>

#include <cstring>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "device/cpu/gemm_tile.h"
#include "device/cpu_options.h"

namespace onnxgrad::device {
namespace {

/// Returns the bytes of a cache; `otherwise` if the system does not know.
std::int64_t cache_bytes(int name, std::int64_t otherwise) {
  const std::int64_t found = ::sysconf(name);
  return found > 0 ? found : otherwise;
}

/// Processors of AMD multiply 512 bits in two passes (Zen 4), or gain nothing by more loads (Zen
/// 5).
bool multiplies_twice_per_cycle() {
#ifdef __x86_64__
  unsigned highest = 0, name[3] = {};
  if (__get_cpuid(0, &highest, &name[0], &name[2], &name[1]) == 0) return false;
  return std::memcmp(name, "GenuineIntel", sizeof(name)) == 0;
#else
  return false;
#endif
}

Machine find_machine() {
  Machine found;
#ifdef _SC_LEVEL1_DCACHE_SIZE
  found.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, found.l1_bytes);
  found.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, found.l2_bytes);
#endif
  found.fma_ports = multiplies_twice_per_cycle() ? 2 : 1;
  return found;
}

}  // namespace

const Machine& this_machine() {
  static const Machine machine = find_machine();
  return machine;
}

Machine machine_of(const CpuOptions& cpu) {
  Machine machine = cpu.machine;
  machine.vector_bits = 32 * gemm_target<float>(cpu.isa).lanes;
  machine.has_amx = cpu.computes_float32_by_amx();
  return machine;
}

}  // namespace onnxgrad::device
