#include "train/optimizers/averages.h"

#include <cstdint>
#include <utility>
#include <variant>

#include "train/optimizers/step_writer.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::StateBinding;
using ir::Value;

constexpr std::string_view kPrefix = "average/";
constexpr const char* kCount = "average_count";

template <class Spec>
std::vector<Field> common_fields() {
  return {
      field("start", &Spec::start, kAtLeastZero, "Updates before the first one that counts."),
      field("start_epoch", &Spec::start_epoch, kAtLeastOne, "First epoch of a fit that counts."),
      field("every", &Spec::every, kAtLeastOne, "Updates from one that counts to the next."),
      field("evaluates", &Spec::evaluates,
            "Whether evaluation, prediction and trained models use the average.")};
}

std::vector<Field> exponential_fields() {
  std::vector<Field> fields{field("decay", &ExponentialAverage::decay, kBelowOne),
                            field("warm_up", &ExponentialAverage::warm_up,
                                  "d = min(decay, (1 + n) / (10 + n)) after n averages, so that "
                                  "a short training is averaged too; else d = decay.")};
  for (Field& one : common_fields<ExponentialAverage>()) fields.push_back(std::move(one));
  return fields;
}

/// Factors of the old average and of the new weight, rank 0, float64.
struct Factors {
  Value* of_average = nullptr;
  Value* of_weight = nullptr;
};

// With n the number of averages before, the new weight counts 1 - d or 1 / (n + 1), and all in the
// first average. Before it the average follows the weights; an update between two changes nothing.
template <class Spec>
Factors write_factors(StepWriter& writer, const Spec& spec) {
  GraphBuilder& g = writer.g();
  const auto number = [&](double value) { return g.constant(Tensor::scalar(value)); };
  Value* count = writer.state(kCount, Tensor::scalar(std::int64_t{0}));
  Value* next = g.add(count, g.int_scalar(1));
  if (spec.start_epoch > 1) {
    Value* epoch = writer.state(kAverageEpoch, Tensor::scalar(std::int64_t{1}));
    writer.bind_always(epoch, epoch);
    next = g.where(g.less(epoch, g.int_scalar(spec.start_epoch)), count, next);
  }
  writer.bind(count, next);
  Value* place = g.cast(g.sub(next, g.int_scalar(spec.start + 1)), DataType::kFloat64);
  Value* n = place;
  if (spec.every > 1) n = g.op("Floor", {g.scale(place, 1.0 / static_cast<double>(spec.every))});
  Value* share = nullptr;
  if constexpr (std::is_same_v<Spec, EqualAverage>) {
    share = g.div(number(1), g.add(g.op("Max", {n, number(0)}), number(1)));
  } else {
    Value* decay = number(spec.decay);
    if (spec.warm_up) {
      Value* above = g.op("Max", {n, number(0)});
      decay = g.op("Min", {decay, g.div(g.add(above, number(1)), g.add(above, number(10)))});
    }
    share = g.where(g.greater(n, number(0)), g.sub(number(1), decay), number(1));
  }
  share = g.where(g.less(place, number(0)), number(1), share);
  if (spec.every > 1) {
    Value* is_due =
        g.equal(g.op("Mod", {g.sub(next, g.int_scalar(spec.start + 1)), g.int_scalar(spec.every)}),
                g.int_scalar(0));
    Value* counts = g.op("Or", {is_due, g.less(place, number(0))});
    share = g.where(counts, share, number(0));
  }
  return {.of_average = g.sub(number(1), share), .of_weight = share};
}

}  // namespace

const DescriptionTable<WeightAverage>& average_rows() {
  static const DescriptionTable<WeightAverage> table = [] {
    DescriptionTable<WeightAverage> made("average");
    const std::vector<StateInfo> states{{"average", "a, of weights and running statistics"},
                                        {kCount, "updates that count"},
                                        {kAverageEpoch, "epoch, with start_epoch"}};
    made.add(Described<ExponentialAverage>{
        .type = "ExponentialAverage",
        .python_name = "EMA",
        .summary = "Exponential moving average",
        .source = "TensorFlow: ExponentialMovingAverage with num_updates; without warm_up torch: "
                  "get_ema_multi_avg_fn",
        .formula =
            "a = d * a + (1 - d) * w with d up to decay; the first update that counts, and those "
            "before it, copy w.",
        .fields = exponential_fields(),
        .states = states,
        .names = {{"ema", {}}},
    });
    made.add(Described<EqualAverage>{
        .type = "EqualAverage",
        .python_name = "SWA",
        .summary = "Stochastic weight averaging",
        .source = "Izmailov et al., 2018",
        .formula = "a = (n * a + w) / (n + 1) after n averages; updates before the first one that "
                   "counts copy w.",
        .fields = common_fields<EqualAverage>(),
        .states = states,
        .names = {{"swa", {}}},
    });
    made.finish();
    return made;
  }();
  return table;
}

std::string average_of(std::string_view weight) { return std::string(kPrefix).append(weight); }

bool is_average(std::string_view state) { return state.starts_with(kPrefix); }

std::vector<StateBinding> write_average(GraphBuilder& g, const WeightAverage& average,
                                        std::span<const StateBinding> averaged, Value* is_update) {
  StepWriter writer(g, nullptr, is_update);
  const Factors factors =
      std::visit([&](const auto& spec) { return write_factors(writer, spec); }, average);
  for (const StateBinding& binding : averaged) {
    Value* old = writer.state(average_of(binding.input->name), binding.input->initializer);
    if (!is_floating(old->dtype())) {
      writer.bind(old, binding.output);
      continue;
    }
    writer.bind(old, g.add(g.mul(old, writer.scalar(factors.of_average, old)),
                           g.mul(binding.output, writer.scalar(factors.of_weight, old))));
  }
  return writer.take_slots();
}

}  // namespace onnxgrad::train
