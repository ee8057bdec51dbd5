#include "onnx/rewriting.h"

#include <algorithm>

namespace onnxgrad::onnx_io {

std::vector<ir::Value*> adopt_results(ir::Node& node, const std::vector<ir::Value*>& results,
                                      std::size_t first_new, ir::GraphBuilder& g,
                                      const ir::TypeInferer& inferer) {
  std::vector<ir::Node*>& nodes = g.graph().nodes;
  const auto is_new = [&](const ir::Node* producer) {
    return std::find(nodes.begin() + static_cast<std::ptrdiff_t>(first_new), nodes.end(),
                     producer) != nodes.end();
  };
  std::vector<ir::Value*> without_result;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    ir::Value* output = node.outputs[i];
    if (output == nullptr) continue;
    ir::Value* result = i < results.size() ? results[i] : nullptr;
    if (result == nullptr) {
      output->producer = nullptr;
      output->type = {};
      without_result.push_back(output);
      continue;
    }
    const bool can_rename = is_new(result->producer) && std::ranges::count(results, result) == 1;
    ir::Value* temporary = can_rename ? result : g.identity(result);
    ir::Node* producer = temporary->producer;
    ir::Graph::set_output(producer, static_cast<std::size_t>(temporary->output_index), output);
    for (std::size_t k = first_new; k < nodes.size(); ++k) {
      std::ranges::replace(nodes[k]->inputs, temporary, output);
    }
    inferer.infer(*producer);
  }
  return without_result;
}

}  // namespace onnxgrad::onnx_io
