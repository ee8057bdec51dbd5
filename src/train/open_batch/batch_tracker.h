#ifndef ONNXGRAD_TRAIN_BATCH_TRACKER_H_
#define ONNXGRAD_TRAIN_BATCH_TRACKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"
#include "train/open_batch/batch_edits.h"
#include "train/open_batch/open_batch.h"

namespace onnxgrad::train {

/// The reason for which the batch dimension cannot be opened.
struct BatchObstacle {
  std::string reason;
};

/// The value if it is known before anything runs, as far as it is small; else undefined.
Tensor known_value(const ir::Value* value);

/// Whether it is an LSTM, GRU or RNN.
bool is_cell(const ir::Node& node);

/// Follows the batch dimension through a model: a copy of it is given another number of rows (a
/// probe), its types are inferred node by node, and compared with those of the model. A dimension
/// that differs holds the rows; it is rows * factor, in row-major order outer * rows * inner. A
/// node whose result does not follow gets other operands (BatchEdit).
class BatchTracker {
 public:
  /// `inputs`: whose first dimension is the batch. `choices`: which of several possible axes are
  /// meant where a Reshape leaves that open; 0 for those that are not listed. `fixed` may be of
  /// any opset from 13 on that ONNX can infer types of.
  BatchTracker(const ir::Model& fixed, std::int64_t rows, const std::vector<std::string>& inputs,
               std::vector<std::size_t> choices = {});
  ~BatchTracker();
  BatchTracker(const BatchTracker&) = delete;
  BatchTracker& operator=(const BatchTracker&) = delete;

  /// The copy with a symbol as batch dimension. Throws: BatchObstacle.
  std::shared_ptr<ir::Model> open();
  const std::vector<BatchEdit>& edits() const { return edits_; }
  /// Number of possible axes at each place where there were several.
  const std::vector<std::size_t>& possibilities() const { return possibilities_; }

 private:
  /// The rows in a dimension: outer * rows * inner.
  struct Position {
    std::size_t axis = 0;
    std::int64_t factor = 1;  ///< outer * inner
  };

  void start(const std::vector<std::string>& inputs);
  void visit(ir::Graph& graph);
  void step(ir::Node& node);
  void follow(ir::Node& node);
  void infer_new(std::size_t first);
  void apply(BatchEdit edit, ir::Node& node);
  std::string infer(ir::Node& node);
  std::string mismatch(const ir::Node& node, bool carries);
  bool repair(ir::Node& node);
  bool repair_reshape(ir::Node& node);
  bool repair_expand(ir::Node& node);
  bool repair_slice(ir::Node& node);
  bool repair_sizes(ir::Node& node);
  bool repair_constants(ir::Node& node);
  bool repair_row_numbers(ir::Node& node);
  bool repeat_rows(ir::Node& node, std::size_t operand, std::size_t axis, std::int64_t factor,
                   bool expands);
  void change_entry(ir::Node& node, std::size_t operand, std::size_t position, std::size_t size,
                    std::int64_t factor, std::int64_t number);
  void enter_bodies(ir::Node& node);
  void set_formals(ir::Node& node, ir::Graph& body);
  std::optional<Position> find_rows(const ir::Value* value) const;
  std::optional<std::size_t> reshaped_axis(const ir::Node& node);
  const ir::Value* before(const ir::Value* value) const;
  std::int64_t outer_of(const ir::Value* value, const Position& position) const;
  void keep_outer(const ir::Node& node);
  void set_types(ir::Graph& graph);
  ir::Type open_type(const ir::Value& value) const;

  ir::Model fixed_;  ///< a copy, with types as far as constants determine them
  std::int64_t rows_;
  std::int64_t probe_rows_;
  std::string symbol_;
  std::vector<std::size_t> choices_;
  std::vector<std::size_t> possibilities_;
  std::shared_ptr<ir::Model> probe_;
  std::unique_ptr<ir::TypeInferer> inferer_;
  std::unordered_map<const ir::Value*, const ir::Value*> before_;  ///< probe's values in fixed_
  std::unordered_map<const ir::Value*, std::int64_t> outer_;       ///< see Position; others: 1
  std::unordered_map<const ir::Node*, std::size_t> chosen_;        ///< axis of Reshape nodes
  std::optional<BatchEditor> editor_;
  std::vector<BatchEdit> edits_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_BATCH_TRACKER_H_
