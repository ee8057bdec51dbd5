#ifndef ONNXGRAD_TRAIN_BATCH_EDITS_H_
#define ONNXGRAD_TRAIN_BATCH_EDITS_H_

#include <string>
#include <vector>

#include "ir/graph.h"
#include "train/open_batch/open_batch.h"

namespace onnxgrad::train {

/// Applies edits to a graph of any opset from 9 on. New nodes are right before the edited one.
class BatchEditor {
 public:
  /// The number of rows at run time is the first dimension of `rows`, an input of `graph`.
  BatchEditor(ir::Graph& graph, ir::Value* rows) : graph_(graph), rows_(rows) {}

  /// `node` is in the graph or in a subgraph.
  void apply(const BatchEdit& edit, ir::Node& node);
  /// The new nodes, in the order of their use.
  const std::vector<ir::Node*>& new_nodes() const { return new_nodes_; }
  bool has_new_constants() const { return has_new_constants_; }

 private:
  ir::Value* ints(const std::vector<std::int64_t>& values, DataType dtype = DataType::kInt64);
  ir::Value* op(ir::Node& place, std::string_view op_type, std::vector<ir::Value*> inputs,
                std::vector<ir::Attribute> attributes = {});
  ir::Value* num_rows();
  ir::Value* rows_times(ir::Node& place, std::int64_t factor);
  ir::Value* joined(ir::Node& place, const std::vector<std::int64_t>& entries, std::size_t position,
                    std::int64_t factor);
  void change_entry(const BatchEdit& edit, ir::Node& node);
  void repeat(const BatchEdit& edit, ir::Node& node);
  ir::Value* repeat_blocks(const BatchEdit& edit, ir::Node& node, ir::Value* block);
  void leave_out_row_numbers(const BatchEdit& edit, ir::Node& node);

  ir::Graph& graph_;
  ir::Value* rows_;
  ir::Value* num_rows_ = nullptr;
  bool has_new_constants_ = false;
  std::vector<ir::Node*> new_nodes_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_BATCH_EDITS_H_
