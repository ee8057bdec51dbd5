#include "onnx/body_bounds.h"

#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "onnx/functions.h"
#include "onnxgrad/dims.h"
#include "opdef/attribute_bounds.h"

namespace onnxgrad::onnx_io {
namespace {

using opdef::AttributeSpec;
using opdef::AttributeType;

constexpr std::int64_t kMostHeads = 1 << 16;
constexpr std::int64_t kMostElements32 = std::numeric_limits<std::int32_t>::max();
constexpr auto kMostAxes64 = static_cast<std::int64_t>(Dims::kMaxRank);
constexpr std::int64_t kLastType = 16;  // bfloat16

AttributeSpec bounded_int(std::string_view name, std::int64_t min, std::int64_t max) {
  return {.name = name, .type = AttributeType::kInt, .min = min, .max = max};
}

AttributeSpec bounded_float(std::string_view name, double min) {
  return {.name = name,
          .type = AttributeType::kFloat,
          .min_float = min,
          .max_float = static_cast<double>(std::numeric_limits<float>::max())};
}

const std::map<std::string_view, std::vector<AttributeSpec>>& bound_rows() {
  constexpr auto kSmallest = static_cast<double>(std::numeric_limits<float>::denorm_min());
  static const std::map<std::string_view, std::vector<AttributeSpec>> rows = {
      {"Attention",
       {bounded_int("is_causal", 0, 1), bounded_int("kv_num_heads", 1, kMostHeads),
        bounded_int("q_num_heads", 1, kMostHeads), bounded_int("qk_matmul_output_mode", 0, 3),
        bounded_float("scale", kSmallest), bounded_float("softcap", 0),
        bounded_int("softmax_precision", 1, kLastType)}},
      {"GroupNormalization", {bounded_int("num_groups", 1, kMostElements32)}},
      {"LinearAttention",
       {bounded_int("chunk_size", 1, kMostElements32), bounded_int("kv_num_heads", 1, kMostHeads),
        bounded_int("q_num_heads", 1, kMostHeads)}},
      {"MeanVarianceNormalization",
       {{.name = "axes",
         .type = AttributeType::kInts,
         .min = -kMostAxes64,
         .max = kMostAxes64 - 1,
         .min_count = 1,
         .max_count = Dims::kMaxRank}}},
      {"RMSNormalization",
       {bounded_int("axis", -kMostAxes64, kMostAxes64 - 1),
        bounded_int("stash_type", 1, kLastType)}},
      {"RotaryEmbedding",
       {bounded_int("interleaved", 0, 1), bounded_int("num_heads", 0, kMostHeads),
        bounded_int("rotary_embedding_dim", 0, kMostElements32)}},
  };
  return rows;
}

}  // namespace

void check_body_bounds(const ir::Node& node) {
  if (!is_standard_domain(node.domain)) return;
  const auto found = bound_rows().find(node.op_type);
  if (found == bound_rows().end()) return;
  for (const AttributeSpec& spec : found->second) opdef::check_attribute(node, spec);
}

}  // namespace onnxgrad::onnx_io
