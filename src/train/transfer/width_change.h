#ifndef ONNXGRAD_TRAIN_TRANSFER_WIDTH_CHANGE_H_
#define ONNXGRAD_TRAIN_TRANSFER_WIDTH_CHANGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "train/transfer/score_layers.h"

// The consequences of another number of classes for the nodes behind a layer. follow() walks ahead
// from the layer's results with the axis that the classes have in each value, and collects edits:
// of constants with one element for each class, of target shapes, labels and declared types. Rules
// of operators are rows of a table in width_rules.cpp. Nothing is changed before apply().

namespace onnxgrad::train {

/// How a value depends on the scores.
struct Carried {
  bool has_classes = false;     ///< one element for each class along `axis`
  std::int64_t axis = 0;        ///< from 0
  std::int64_t rank = 0;        ///< of the value
  bool is_label = false;        ///< labels of the file's list of classes
  bool is_squashed = false;     ///< behind a Sigmoid
  bool is_second = false;       ///< took the place of the second of two columns
  ir::Value* scores = nullptr;  ///< the value before the Sigmoid, if that has one column
};

class WidthChange {
 public:
  /// `labels`: int64 or string [classes]; undefined: 0, 1, ... in the type of the file's.
  WidthChange(ir::Model& file, const ir::Model& working, std::int64_t classes, Tensor labels);

  /// Follows the results of these layers, which have `width` elements, to the outputs of the
  /// model. "" or the reason why they are no scores: then `other()` is an operand that another
  /// layer computes, if that is the reason.
  std::string follow(const std::vector<const ScoreLayer*>& layers);
  const ir::Value* other() const { return other_; }
  /// The elements that the layers have to compute: 1 if two classes are told apart by one score.
  std::int64_t new_width() const { return new_width_; }
  bool has_labels() const { return has_labels_; }
  bool reaches(const ir::Value* value) const { return carried_.contains(value); }
  /// Carries out the edits.
  void apply();

  // For the rules.

  enum class Fill : std::uint8_t { kZeros, kOnes, kLast };
  ir::Graph& graph() { return *file_.graph; }
  std::int64_t opset() const { return file_.opset(); }
  std::int64_t old_width() const { return old_width_; }
  std::int64_t classes() const { return classes_; }
  bool keeps_width() const { return new_width_ == old_width_; }
  const Carried* find(const ir::Value* value) const;
  /// Type of a value: of the file, or as inferred for the working copy.
  ir::Type type_of(const ir::Value* value) const;
  std::optional<std::int64_t> rank_of(const ir::Value* value) const;
  /// Elements of a constant; nullptr if it is not one.
  static const Tensor* constant(const ir::Value* value);
  void carry(const ir::Value* value, Carried state) { carried_.insert_or_assign(value, state); }
  /// Gives input `input` of `node` a constant that has the new width along `axis`.
  void resize(ir::Node& node, std::size_t input, std::size_t axis, Fill fill);
  void replace_input(ir::Node& node, std::size_t input, Tensor numbers);
  void edit(std::function<void()> change) { edits_.push_back(std::move(change)); }
  /// The new list of labels in that type or, if labels were given, in theirs.
  Tensor labels(DataType old) const;
  void note_labels() { has_labels_ = true; }
  void note_bias(const ir::Node& node, std::size_t input) { biases_.emplace_back(&node, input); }
  /// Weights of the head that have to be drawn, after apply(): biases that an Add adds.
  const std::vector<ir::Value*>& new_biases() const { return new_biases_; }
  std::string refuse_operand(const ir::Node& node, const ir::Value* operand);
  void use_one_score() { wants_one_score_ = true; }
  ir::Value* new_initializer(ir::Value* old, Tensor numbers);
  void drop(const ir::Value* value) { dropped_.push_back(value); }

 private:
  std::string start(const ScoreLayer& layer);
  std::string follow_once(const std::vector<const ScoreLayer*>& layers);
  void set_types();

  ir::Model& file_;
  const ir::Model& working_;
  std::int64_t classes_;
  Tensor labels_;
  std::int64_t old_width_ = 0;
  std::int64_t new_width_ = 0;
  bool has_labels_ = false;
  bool wants_one_score_ = false;
  const ir::Value* other_ = nullptr;
  std::unordered_map<const ir::Value*, Carried> carried_;
  std::vector<std::function<void()>> edits_;
  std::vector<std::pair<const ir::Node*, std::size_t>> biases_;
  std::vector<ir::Value*> new_biases_;
  std::vector<const ir::Value*> dropped_;
  std::vector<std::pair<ir::Value*, ir::Value*>> renamed_;  // constant, its successor
};

/// Applies the rule of a node with inputs that are carried, and carries its outputs. "" or the
/// reason why classes cannot pass.
std::string pass_node(ir::Node& node, WidthChange& change);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TRANSFER_WIDTH_CHANGE_H_
