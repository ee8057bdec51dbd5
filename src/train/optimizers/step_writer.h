#ifndef ONNXGRAD_TRAIN_OPTIMIZERS_STEP_WRITER_H_
#define ONNXGRAD_TRAIN_OPTIMIZERS_STEP_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"

namespace onnxgrad::train {

/// One weight in an update, or the part of it that this worker updates.
struct WeightStep {
  std::string name = {};  ///< name of the weight
  ir::Value* weight = nullptr;
  ir::Value* gradient = nullptr;  ///< in the weight's shape and dtype
  double rate_factor = 1;         ///< factor of the learning rate
  double weight_decay = 0;
  std::string count = {};  ///< name of the state that counts its updates
};

/// Objects shared by the formulas of all weights: rates, step counts, slots and their bindings.
class StepWriter {
 public:
  /// learning_rate: rank 0, floating. is_update: rank 0, bool; if it is false, every slot and
  /// weight keeps its value; nullptr: each step updates.
  StepWriter(ir::GraphBuilder& g, ir::Value* learning_rate, ir::Value* is_update = nullptr)
      : g_(g), learning_rate_(learning_rate), is_update_(is_update) {}

  ir::GraphBuilder& g() { return g_; }
  /// Replaces the learning rate, before its first use.
  void set_learning_rate(ir::Value* learning_rate) { learning_rate_ = learning_rate; }

  /// A scalar in the type of `like`, cast once per type.
  ir::Value* scalar(ir::Value* x, ir::Value* like);
  /// The weight's learning rate: in its dtype, or as float64 for formulas of scalars.
  ir::Value* rate(const WeightStep& step);
  ir::Value* wide_rate(const WeightStep& step);

  /// Form of weight decay: gradient + weight_decay * weight, or weight * (1 - rate * weight_decay).
  enum class Decay : std::uint8_t { kNone, kGradient, kWeight };
  struct Decayed {
    ir::Value* weight = nullptr;
    ir::Value* gradient = nullptr;
  };
  Decayed decayed(const WeightStep& step, Decay decay);

  /// Operands of an update besides the weight; nullptr if the rule does not have it.
  struct Operands {
    ir::Value* gradient = nullptr;
    ir::Value* m = nullptr;  ///< slots before the step
    ir::Value* v = nullptr;
    ir::Value* rate = nullptr;  ///< rank 0, as epsilon, in the weight's dtype
    ir::Value* epsilon = nullptr;
  };
  /// Calls the function of opdef::WeightUpdate, which does the decay too; binds the slots and
  /// returns the weight's new value.
  ir::Value* apply(opdef::WeightUpdate update, const WeightStep& step, const Operands& operands,
                   Decay decay);

  /// A state of the weight's shape, "<prefix>/<weight>", that starts as `first` everywhere.
  ir::Value* slot(const std::string& prefix, const WeightStep& step, double first = 0);
  /// Zeros for a first value, which nothing writes to: all share the bytes of the largest.
  Tensor zeros(DataType dtype, const Dims& dims);
  /// A state with this first value.
  ir::Value* state(const std::string& name, Tensor first);
  /// Sets the state's next value: `output`, or its old value if the step does not update.
  void bind(ir::Value* input, ir::Value* output);
  /// Sets the state's next value to `output`, regardless of is_update.
  void bind_always(ir::Value* input, ir::Value* output) {
    slots_.push_back({.input = input, .output = output});
  }
  ir::Value* where_updating(ir::Value* updated, ir::Value* old);

  /// Updates of the weight before this one, and with this one, as float64.
  ir::Value* steps_before(const WeightStep& step);
  ir::Value* steps_after(const WeightStep& step);

  std::vector<ir::StateBinding> take_slots() { return std::move(slots_); }

 private:
  struct Count {
    ir::Value* before = nullptr;
    ir::Value* after = nullptr;
  };
  const Count& count(const WeightStep& step);
  /// 1 - rate * weight_decay in the weight's dtype; nullptr: 1.
  ir::Value* shrink(const WeightStep& step);

  ir::GraphBuilder& g_;
  ir::Value* learning_rate_;
  ir::Value* is_update_;
  std::map<std::pair<ir::Value*, DataType>, ir::Value*> casts_;
  std::map<std::pair<double, DataType>, ir::Value*> rates_;
  std::map<std::pair<double, DataType>, ir::Value*> shrinks_;  // by rate_factor * weight_decay
  std::map<std::string, Count> counts_;
  std::vector<ir::StateBinding> slots_;
  std::shared_ptr<std::byte> zeros_;
  std::int64_t num_zeros_ = 0;  // bytes
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPTIMIZERS_STEP_WRITER_H_
