#include "ops/nn/conv/conv_units_cpu.h"

#include <utility>

namespace onnxgrad::ops {

std::int64_t even_part_of(std::int64_t total, std::int64_t largest, std::int64_t parts) {
  return ceil_div(total, round_up(ceil_div(total, largest), parts));
}

std::vector<ChannelPanel> split_panels(std::int64_t total, std::int64_t most, std::int64_t unit,
                                       std::int64_t parts, std::vector<std::int64_t>* firsts) {
  std::vector<ChannelPanel> panels;
  std::vector<std::int64_t> of_parts;
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    of_parts.push_back(static_cast<std::int64_t>(panels.size()));
    const EvenSplit split = split_evenly(total * (part + 1) / parts - total * part / parts, most);
    for (std::int64_t i = 0; i < split.count(); ++i) {
      panels.push_back({.first = first, .width = split.size(i) * unit});
      first += panels.back().width;
    }
  }
  of_parts.push_back(static_cast<std::int64_t>(panels.size()));
  if (firsts != nullptr) *firsts = std::move(of_parts);
  return panels;
}

double tile_cycles(std::int64_t rows, std::int64_t vectors) {
  const auto multiply_adds = 0.5 * static_cast<double>(rows * vectors);
  const auto loads = 0.5 * static_cast<double>(rows + vectors);
  constexpr double kLatency = 5;  // cycles of a multiply-add, with some stalls
  constexpr double kLoop = 0.3;
  return std::max({multiply_adds, loads, kLatency}) + kLoop;
}

}  // namespace onnxgrad::ops
