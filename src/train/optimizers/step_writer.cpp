#include "train/optimizers/step_writer.h"

#include <cstdint>

#include "base/memory_budget.h"

namespace onnxgrad::train {

using ir::Value;

Value* StepWriter::scalar(Value* x, Value* like) {
  Value*& cast = casts_[{x, like->dtype()}];
  if (cast == nullptr) cast = g_.cast_like(x, like);
  return cast;
}

Value* StepWriter::rate(const WeightStep& step) {
  Value*& rate = rates_[{step.rate_factor, step.weight->dtype()}];
  if (rate == nullptr) {
    rate = step.rate_factor == 1 ? scalar(learning_rate_, step.weight)
                                 : scalar(wide_rate(step), step.weight);
  }
  return rate;
}

Value* StepWriter::wide_rate(const WeightStep& step) {
  // Not the entry of rate(): for float64 weights both are the same number.
  Value*& wide = rates_[{step.rate_factor, DataType::kUndefined}];
  if (wide == nullptr) {
    wide = g_.cast(learning_rate_, DataType::kFloat64);
    if (step.rate_factor != 1) wide = g_.scale(wide, step.rate_factor);
  }
  return wide;
}

StepWriter::Decayed StepWriter::decayed(const WeightStep& step, Decay decay) {
  Decayed result{.weight = step.weight, .gradient = step.gradient};
  if (step.weight_decay == 0) return result;
  if (decay == Decay::kGradient) {
    result.gradient = g_.add(step.gradient, g_.scale(step.weight, step.weight_decay));
  } else if (Value* factor = decay == Decay::kWeight ? shrink(step) : nullptr) {
    result.weight = g_.mul(step.weight, factor);
  }
  return result;
}

Value* StepWriter::shrink(const WeightStep& step) {
  if (step.weight_decay == 0 || step.rate_factor == 0) return nullptr;
  Value*& shrink = shrinks_[{step.rate_factor * step.weight_decay, step.weight->dtype()}];
  if (shrink == nullptr) {
    Value* wide = wide_rate(step);
    Value* factor = g_.sub(g_.scalar_like(wide, 1), g_.scale(wide, step.weight_decay));
    shrink = scalar(factor, step.weight);
  }
  return shrink;
}

Value* StepWriter::apply(opdef::WeightUpdate update, const WeightStep& step,
                         const Operands& operands, Decay decay) {
  Value* factor = decay == Decay::kWeight ? shrink(step) : nullptr;
  update.shrinks = factor != nullptr;
  if (decay == Decay::kGradient) update.decay = step.weight_decay;
  std::vector<Value*> inputs{operands.gradient, step.weight,      operands.m, operands.v,
                             operands.rate,     operands.epsilon, factor};
  std::erase(inputs, nullptr);
  const std::vector<Value*> results =
      g_.call(opdef::kWeightUpdate, std::move(inputs), update.num_outputs(), update.attributes());
  bind(operands.m, results[1]);
  if (update.has_v()) bind(operands.v, results[2]);
  return results[0];
}

Value* StepWriter::slot(const std::string& prefix, const WeightStep& step, double first) {
  const DataType dtype = step.weight->dtype();
  const Dims dims = step.weight->type.fixed_dims();
  const std::string name = prefix + "/" + step.name;
  if (first == 0) return state(name, zeros(dtype, dims));
  const std::vector<double> numbers(static_cast<std::size_t>(dims.num_elements()), first);
  return state(name, Tensor::from(numbers, dims).cast(dtype));
}

Tensor StepWriter::zeros(DataType dtype, const Dims& dims) {
  const std::int64_t bytes = dims.size_bytes(dtype);
  if (zeros_ == nullptr || num_zeros_ < bytes) {
    zeros_ = base::allocate_zeros(bytes);
    num_zeros_ = bytes;
  }
  return Tensor::view(dtype, dims, zeros_.get(), zeros_);
}

Value* StepWriter::state(const std::string& name, Tensor first) {
  Value* value = g_.graph().add_input(name, ir::Type::tensor(first.dtype(), first.dims()));
  value->initializer = std::move(first);
  g_.graph().initializers.push_back(value);
  return value;
}

void StepWriter::bind(Value* input, Value* output) {
  bind_always(input, where_updating(output, input));
}

Value* StepWriter::where_updating(Value* updated, Value* old) {
  return is_update_ == nullptr ? updated : g_.where(is_update_, updated, old);
}

const StepWriter::Count& StepWriter::count(const WeightStep& step) {
  Count& count = counts_[step.count];
  if (count.before == nullptr) {
    Value* done = state(step.count, Tensor::scalar(std::int64_t{0}));
    Value* next = g_.add(done, g_.int_scalar(1));
    bind(done, next);
    count = {.before = g_.cast(done, DataType::kFloat64),
             .after = g_.cast(next, DataType::kFloat64)};
  }
  return count;
}

Value* StepWriter::steps_before(const WeightStep& step) { return count(step).before; }

Value* StepWriter::steps_after(const WeightStep& step) { return count(step).after; }

}  // namespace onnxgrad::train
