#include "ops/training_switch.h"

#include <string_view>
#include <unordered_map>

namespace onnxgrad::ops {

const TrainingSwitch* find_training_switch(const ir::Node& node) {
  static const std::unordered_map<std::string_view, TrainingSwitch> switches{
      {"BatchNormalization", {.weights = {1, 2}, .switch_on = switch_on_batch_normalization}},
      {"Dropout", {.switch_on = switch_on_dropout}},
  };
  const auto found = switches.find(node.op_type);
  return found == switches.end() || !node.domain.empty() ? nullptr : &found->second;
}

}  // namespace onnxgrad::ops
