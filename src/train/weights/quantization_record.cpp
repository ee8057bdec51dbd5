#include "train/weights/quantization_record.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "base/check.h"

namespace onnxgrad::train {

double LearnedScale::gradient_factor() const {
  return 1 / std::sqrt(static_cast<double>(elements) * static_cast<double>(largest));
}

std::vector<LearnedScale> read_learned_scales(const ir::Model& model) {
  std::vector<LearnedScale> scales;
  for (const auto& [key, text] : model.metadata) {
    if (key != kQuantizationEntry) continue;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      LearnedScale scale;
      words >> scale.elements >> scale.largest;
      words.get();
      if (!words || !std::getline(words, scale.name) || scale.elements < 1 || scale.largest < 1) {
        throw ModelError({.what = fmt::format("the model's metadata '{}' are damaged: '{}'", key,
                                              base::printable(line)),
                          .hint = "Remove the entry, or quantize the model again."});
      }
      scales.push_back(std::move(scale));
    }
  }
  return scales;
}

void write_learned_scales(ir::Model& model, const std::vector<LearnedScale>& scales) {
  std::erase_if(model.metadata,
                [](const auto& entry) { return entry.first == kQuantizationEntry; });
  if (scales.empty()) return;
  std::string text;
  for (const LearnedScale& scale : scales) {
    text += fmt::format("{} {} {}\n", scale.elements, scale.largest, scale.name);
  }
  model.metadata.emplace_back(kQuantizationEntry, text);
}

}  // namespace onnxgrad::train
