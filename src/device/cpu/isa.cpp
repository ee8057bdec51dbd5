#include "device/isa.h"

// clang-format off: the targets are chosen before Highway is included
#include "device/cpu/simd.h"
#include <hwy/highway.h>
// clang-format on

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/error.h"

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

/// Returns the compiled targets: all, or the one that the environment names and lesser ones.
std::int64_t allowed_targets() {
  constexpr const char* kVariable = "ONNXGRAD_MAX_ISA";
  const char* given = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): only reads
  const std::string_view most = given == nullptr ? "" : given;
  if (most.empty()) return HWY_TARGETS;
  std::string names;
  for (std::int64_t left = HWY_TARGETS; left != 0; left &= left - 1) {
    const char* name = hwy::TargetName(left & -left);
    if (most == name) return left;
    names += names.empty() ? name : fmt::format(", {}", name);
  }
  throw DeviceError(
      {.what =
           fmt::format("environment variable {}='{}' names no instruction set", kVariable, most),
       .hint = fmt::format("It is the best one that may be used, one of {}.", names)});
}

std::vector<Set> find_sets() {
  std::vector<Set> sets;
  std::int64_t left = hwy::SupportedTargets() & allowed_targets();
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
