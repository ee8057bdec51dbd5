#include "ops/random/draws.h"

#include <bit>
#include <string_view>
#include <variant>

#include "opdef/random_stream.h"

namespace onnxgrad::ops {
namespace {

// FNV-1a hash (Fowler, Noll and Vo), 32 bits.
std::uint32_t hash_name(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace

RandomStream RandomStream::of(const ir::Node& node) {
  RandomStream draws{.stream = hash_name(opdef::random_stream(node))};
  if (const ir::AttributeValue* seed = node.find_attribute("seed")) {
    // Dropout has an integer seed, the other operators a float, whose bits are used.
    if (const auto* number = std::get_if<std::int64_t>(seed)) {
      draws.own_seed = static_cast<std::uint64_t>(*number);
    } else if (const auto* real = std::get_if<float>(seed)) {
      draws.own_seed = std::bit_cast<std::uint32_t>(*real);
    }
  }
  return draws;
}

RowStretches RowStretches::of(const ir::Node& node, const Dims& dims) {
  RowStretches result{.length = dims.num_elements()};
  const std::int64_t axis = opdef::row_axis(node);
  if (axis < 0 || static_cast<std::size_t>(axis) >= dims.rank() || result.length == 0) {
    return result;
  }
  result.has_rows = true;
  for (std::size_t i = 0; i < static_cast<std::size_t>(axis); ++i) result.stretches *= dims[i];
  result.length /= result.stretches;
  return result;
}

}  // namespace onnxgrad::ops
