#include "train/open_batch/batch_proof.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/interrupt.h"
#include "base/philox.h"
#include "onnxgrad/error.h"
#include "runtime/executor.h"
#include "train/graphs/outputs.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

// Random numbers that inputs are filled with. Integers may be classes, words or flags, so they
// are small; numbers below zero may have no logarithm.
struct Draw {
  double low;
  double high;
  std::int64_t first_integer;
};

constexpr Draw kDraws[] = {{-1, 1, 0}, {0.1, 1, 1}};
constexpr std::uint64_t kSeed = 41;

Tensor random_tensor(DataType dtype, const Dims& dims, const Draw& draw, std::uint32_t stream) {
  std::vector<double> numbers(static_cast<std::size_t>(dims.num_elements()));
  base::PhiloxStream random(kSeed, base::RandomUse::kValidation, stream);
  for (double& number : numbers) {
    const double u = random.uniform();
    number = is_floating(dtype) ? draw.low + u * (draw.high - draw.low)
                                : static_cast<double>(draw.first_integer + (u < 0.5 ? 0 : 1));
  }
  if (dtype == DataType::kBool) {
    for (double& number : numbers) number -= static_cast<double>(draw.first_integer);
  }
  return Tensor::from(numbers, dims).cast(dtype);
}

// Elements [begin, end) along `axis`.
Tensor part(const Tensor& whole, std::size_t axis, std::int64_t begin, std::int64_t end) {
  const Dims& dims = whole.dims();
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[axis] = end - begin;
  const std::int64_t outer = dims.product(0, axis);
  const std::int64_t inner = dims.product(axis + 1, dims.rank());
  const std::vector<double> from = whole.to_doubles();
  std::vector<double> to;
  to.reserve(static_cast<std::size_t>(outer * (end - begin) * inner));
  for (std::int64_t o = 0; o < outer; ++o) {
    const auto first = from.begin() + (o * dims[axis] + begin) * inner;
    to.insert(to.end(), first, first + (end - begin) * inner);
  }
  return Tensor::from(to, Dims(std::move(sizes)));
}

constexpr std::chrono::seconds kLoopTime{2};  // a Loop on random numbers need not end

bool has_loop(const ir::Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const auto& node) {
    return node->op_type == "Loop" ||
           std::ranges::any_of(node->subgraphs(),
                               [](const ir::Graph* body) { return has_loop(*body); });
  });
}

class Comparison {
 public:
  Comparison(const std::shared_ptr<const ir::Model>& fixed,
             const std::shared_ptr<const ir::Model>& open, std::int64_t rows,
             const std::vector<std::string>& inputs)
      : fixed_(with_runnable_outputs(*fixed, &names_)),
        open_(with_runnable_outputs(*open, nullptr)),
        rows_(rows),
        inputs_(inputs),
        fixed_run_(fixed_, cpu_engine(), backend_for({}).options),
        open_run_(open_, cpu_engine(), backend_for({}).options) {}

  // Runs both models on feeds drawn in this way and describes the first difference, or "". Throws:
  // Error (the feeds are not accepted).
  std::string differ(const Draw& draw) {
    const std::int64_t all = 2 * rows_;
    const std::vector<Tensor> feeds = random_feeds(all, draw);
    const std::vector<Tensor> together = run(open_run_, feeds);
    std::string found;
    for (std::int64_t begin = 0; begin < all && found.empty(); begin += rows_) {
      const std::vector<Tensor> alone = run(fixed_run_, rows_of(feeds, begin, begin + rows_));
      for (std::size_t i = 0; i < alone.size() && found.empty(); ++i) {
        const auto axis = rows_axis(i);
        const Tensor same = axis ? part(together[i], *axis, begin * factor(i, *axis),
                                        (begin + rows_) * factor(i, *axis))
                                 : together[i];
        if (!is_close(alone[i], same))
          found = "output '" + names_[i] + "' of a row depends on others";
      }
    }
    if (!found.empty() || rows_ == 1) return found;
    const std::vector<Tensor> single = run(open_run_, rows_of(feeds, 0, 1));
    for (std::size_t i = 0; i < single.size(); ++i) {
      const auto axis = rows_axis(i);
      if (!axis) continue;
      if (!is_close(single[i], part(together[i], *axis, 0, factor(i, *axis)))) {
        return "output '" + names_[i] + "' of a row depends on others";
      }
    }
    return "";
  }

 private:
  static std::shared_ptr<const ir::Model> with_runnable_outputs(const ir::Model& model,
                                                                std::vector<std::string>* names) {
    auto copy = std::make_shared<ir::Model>(ir::clone(model));
    ir::Graph& graph = *copy->graph;
    const auto runnable = runnable_outputs(graph);
    graph.outputs.clear();
    for (const RunnableOutput& output : runnable) {
      if (output.value == nullptr) continue;
      graph.outputs.push_back(output.value);
      if (names != nullptr) names->push_back(output.name);
    }
    for (ir::Value* value : graph.initializers) value->is_input = false;
    std::erase_if(graph.inputs, [](const ir::Value* value) { return value->is_initializer(); });
    ir::eliminate_dead_nodes(graph);
    return copy;
  }

  static std::vector<Tensor> run(runtime::Executor& executor, const std::vector<Tensor>& feeds) {
    std::vector<Dims> dims;
    for (const Tensor& feed : feeds) dims.push_back(feed.dims());
    runtime::Execution& plan = executor.prepare(dims);
    for (std::size_t i = 0; i < feeds.size(); ++i) plan.bind(i, feeds[i].raw());
    plan.run();
    std::vector<Tensor> results;
    for (std::size_t i = 0; i < executor.outputs().size(); ++i) {
      results.push_back(plan.output_tensor(i).cast(DataType::kFloat64));
    }
    return results;
  }

  bool has_rows(const std::string& name) const {
    return std::ranges::find(inputs_, name) != inputs_.end();
  }

  std::vector<Tensor> random_feeds(std::int64_t all, const Draw& draw) const {
    std::vector<Tensor> feeds;
    for (const runtime::Port& port : fixed_run_.inputs()) {
      if (!port.type.is_tensor() || !port.type.shape) {
        throw ModelError({.what = "input '" + port.name + "' is not a tensor of known rank",
                          .where = {.value = port.name},
                          .hint = "Declare its shape in the file."});
      }
      std::vector<std::int64_t> sizes;
      for (const ir::Dim& dim : port.type.shape.value()) {
        sizes.push_back(dim.is_static() ? dim.value() : kOtherSize);
      }
      if (has_rows(port.name)) sizes[0] = all;
      feeds.push_back(random_tensor(port.type.dtype, Dims(std::move(sizes)), draw,
                                    static_cast<std::uint32_t>(feeds.size())));
    }
    return feeds;
  }

  std::vector<Tensor> rows_of(const std::vector<Tensor>& feeds, std::int64_t begin,
                              std::int64_t end) const {
    std::vector<Tensor> chosen;
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      const runtime::Port& port = fixed_run_.inputs()[i];
      chosen.push_back(has_rows(port.name) ? part(feeds[i], 0, begin, end).cast(feeds[i].dtype())
                                           : feeds[i]);
    }
    return chosen;
  }

  // The axis of an output that has the rows: there the declared types differ.
  std::optional<std::size_t> rows_axis(std::size_t output) const {
    const auto& fixed = fixed_->graph->outputs[output]->type.shape;
    const auto& open = open_->graph->outputs[output]->type.shape;
    if (!fixed || !open || fixed->size() != open->size()) return std::nullopt;
    for (std::size_t axis = 0; axis < fixed->size(); ++axis) {
      if ((*fixed)[axis].is_static() && !(*open)[axis].is_static()) return axis;
    }
    return std::nullopt;
  }
  std::int64_t factor(std::size_t output, std::size_t axis) const {
    return (*fixed_->graph->outputs[output]->type.shape)[axis].value() / rows_;
  }

  // Up to rounding: kernels may add in another order for other shapes.
  bool is_close(const Tensor& a, const Tensor& b) const {
    if (a.dims() != b.dims()) return false;
    const auto x = a.data<double>();
    const auto y = b.data<double>();
    double largest = 0;
    for (const double number : x) {
      if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) && std::isnan(y[i])) continue;
      if (x[i] == y[i]) continue;
      if (!(std::abs(x[i] - y[i]) <= kTolerance * largest)) return false;
    }
    return true;
  }

  static constexpr std::int64_t kOtherSize = 8;  // size of dimensions that are open in the file
  static constexpr double kTolerance = 2e-3;     // for float16 too; other rows differ by far more

  std::vector<std::string> names_;
  std::shared_ptr<const ir::Model> fixed_;
  std::shared_ptr<const ir::Model> open_;
  std::int64_t rows_;
  const std::vector<std::string>& inputs_;
  runtime::Executor fixed_run_;
  runtime::Executor open_run_;
};

}  // namespace

std::string disprove(const std::shared_ptr<const ir::Model>& fixed,
                     const std::shared_ptr<const ir::Model>& open, std::int64_t rows,
                     const std::vector<std::string>& inputs) {
  std::string refused;
  std::optional<base::TimeLimit> limit;
  if (has_loop(*fixed->graph)) limit.emplace(kLoopTime);
  try {
    Comparison comparison(fixed, open, rows, inputs);
    for (const Draw& draw : kDraws) {
      try {
        return comparison.differ(draw);
      } catch (const Error& error) {
        refused = error.problem().what;
      }
    }
  } catch (const Error& error) {
    refused = error.problem().what;
  } catch (const base::TimeOver&) {
    refused = "a Loop does not end";
  } catch (const std::exception&) {  // std::bad_alloc, or std::length_error of a vector
    refused = "they do not fit in memory";
  }
  return "it cannot be run on random rows (" + refused + ")";
}

}  // namespace onnxgrad::train
