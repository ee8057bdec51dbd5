#include "train/weights/master_weights.h"

#include "base/check.h"
#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::Value;

void store_in_float32(Value* weight) {
  weight->type.dtype = DataType::kFloat32;
  if (weight->is_initializer()) weight->initializer = weight->initializer.cast(DataType::kFloat32);
}

}  // namespace

void widen_weight(ir::Graph& graph, Value* weight) {
  const DataType stored = weight->dtype();
  if (!is_f16(stored)) return;
  Value* half = graph.add_value(graph.names().unique(weight->name + "_f16"), weight->type);
  ir::replace_uses(graph, {{weight, half}});
  store_in_float32(weight);
  ir::Node* cast = graph.make_node("Cast", {weight}, {half}, weight->name + "_f16",
                                   {{"to", static_cast<std::int64_t>(stored)}});
  graph.nodes.insert(graph.nodes.begin(), cast);
}

void widen_statistics(ir::GraphBuilder& g, std::vector<ir::StateBinding>& statistics) {
  const ir::Uses uses(g.graph());
  std::vector<ir::Node*> keepers;
  for (ir::StateBinding& statistic : statistics) {
    if (!is_f16(statistic.input->dtype())) continue;
    ir::Node* keeper = statistic.output->producer;
    if (keeper != nullptr && keeper == uses.only_reader(statistic.input)) {
      store_in_float32(statistic.input);
      statistic.output->type.dtype = DataType::kFloat32;
      keepers.push_back(keeper);
    } else {
      widen_weight(g.graph(), statistic.input);
      statistic.output = g.cast(statistic.output, DataType::kFloat32);
    }
  }
  for (ir::Node* keeper : keepers) g.inferer().infer(*keeper);
}

}  // namespace onnxgrad::train
