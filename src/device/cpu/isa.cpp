#include "device/isa.h"

// clang-format off: the targets are chosen before Highway is included
#include "device/cpu/simd.h"
#include <hwy/highway.h>
// clang-format on

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace onnxgrad::device {
namespace {

struct Set {
  Isa isa = {};
  const char* name = "";
};

/// Returns the place in a table of HWY_EXPORT, from bits as hwy::ChosenTarget has them.
Isa lowest(std::int64_t chosen_bits) {
  return static_cast<Isa>(std::countr_zero(static_cast<std::uint64_t>(chosen_bits)));
}

std::vector<Set> find_sets() {
  std::vector<Set> sets;
  std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS;
  for (; left != 0; left &= left - 1) {  // a better target has a lower bit
    const std::int64_t target = left & -left;
    sets.push_back({lowest(HWY_CHOSEN_TARGET_SHIFT(target)), hwy::TargetName(target)});
  }
  if (sets.empty()) sets.push_back({lowest(HWY_CHOSEN_TARGET_MASK_SCALAR), "baseline"});
  return sets;
}

const std::vector<Set>& all_sets() {
  static const std::vector<Set> sets = find_sets();
  return sets;
}

}  // namespace

std::span<const Isa> available_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found;
    for (const Set& set : all_sets()) found.push_back(set.isa);
    return found;
  }();
  return isas;
}

const char* isa_name(Isa isa) {
  for (const Set& set : all_sets()) {
    if (set.isa == isa) return set.name;
  }
  return "";
}

}  // namespace onnxgrad::device
