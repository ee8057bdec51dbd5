#include "train/adapters/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace onnxgrad::train {
namespace {

struct Scale {
  float scale = 1;
  int zero = 0;
};

float largest_of(std::span<const float> block) {
  const auto is_less = [](float a, float b) { return std::abs(a) < std::abs(b); };
  return *std::ranges::max_element(block, is_less);
}

Scale scale_of(std::span<const float> block, const WeightQuantization& options) {
  const bool has_8_bits = options.format == WeightFormat::kInt8;
  const int last = has_8_bits ? 255 : 15;
  const int middle = (last + 1) / 2;
  const float largest = largest_of(block);
  if (largest == 0 || !std::isfinite(largest)) return {.scale = 1, .zero = middle};
  if (options.format == WeightFormat::kNf4) return {.scale = std::abs(largest)};
  if (options.is_symmetric) {
    const float scale = has_8_bits ? std::abs(largest) / 127 : -largest / 8;
    return {.scale = scale, .zero = middle};
  }
  const float low = std::min(0.0F, *std::ranges::min_element(block));
  const float high = std::max(0.0F, *std::ranges::max_element(block));
  const float scale = (high - low) / static_cast<float>(last);
  return {.scale = scale, .zero = std::clamp(static_cast<int>(std::lround(-low / scale)), 0, last)};
}

std::uint8_t nearest_entry(float x) {
  const auto* const above = std::ranges::lower_bound(kNf4Entries, x);
  if (above == kNf4Entries.begin()) return 0;
  if (above == kNf4Entries.end()) return 15;
  const auto index = static_cast<std::uint8_t>(above - kNf4Entries.begin());
  return x - *(above - 1) < *above - x ? static_cast<std::uint8_t>(index - 1) : index;
}

std::uint8_t code_of(float x, const Scale& scale, WeightFormat format) {
  if (format == WeightFormat::kNf4) return nearest_entry(x / scale.scale);
  const float last = format == WeightFormat::kInt8 ? 255 : 15;
  const float code = std::nearbyint(x / scale.scale) + static_cast<float>(scale.zero);
  return static_cast<std::uint8_t>(std::isnan(code) ? 0 : std::clamp(code, 0.0F, last));
}

}  // namespace

QuantizedRows quantize_rows(const std::vector<float>& numbers, std::int64_t rows,
                            const WeightQuantization& options) {
  const auto columns = static_cast<std::int64_t>(numbers.size()) / rows;
  QuantizedRows made{.rows = rows, .columns = columns, .block = options.block_size};
  const bool has_zeros = options.format != WeightFormat::kNf4;
  const std::uint8_t nothing = nearest_entry(0);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; c += made.block) {
      const std::int64_t count = std::min(made.block, columns - c);
      const std::span<const float> block(&numbers[static_cast<std::size_t>(r * columns + c)],
                                         static_cast<std::size_t>(count));
      const Scale scale = scale_of(block, options);
      made.scales.push_back(scale.scale);
      if (has_zeros) made.zeros.push_back(static_cast<std::uint8_t>(scale.zero));
      for (const float x : block) made.codes.push_back(code_of(x, scale, options.format));
      const auto filled = has_zeros ? static_cast<std::uint8_t>(scale.zero) : nothing;
      made.codes.insert(made.codes.end(), static_cast<std::size_t>(made.block - count), filled);
    }
  }
  return made;
}

}  // namespace onnxgrad::train
