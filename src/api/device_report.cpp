#include "onnxgrad/device_report.h"

#include <fmt/format.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "api/model_impl.h"
#include "ir/graph.h"
#include "ir/uses.h"
#include "onnxgrad/error.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/optimizers.h"
#include "passes/passes.h"
#include "runtime/device_use.h"
#include "train/graphs/outputs.h"
#include "train/session/session.h"
#include "train/tools/engine.h"
#include "train/tools/text_codes.h"

namespace onnxgrad {
namespace {

// Shapes of inputs, whose unknown dimensions are the rows.
std::vector<Dims> shapes_of(std::span<const runtime::Port> ports, std::int64_t rows) {
  std::vector<Dims> shapes;
  for (const runtime::Port& port : ports) {
    if (!port.type.has_rank()) {
      throw ShapeError({.what = "the rank of an input is not known",
                        .where = {.value = port.name},
                        .hint = "Declare its shape in the model."});
    }
    std::vector<std::int64_t> dims;
    for (const ir::Dim& dim : *port.type.shape) {
      dims.push_back(dim.is_static() ? dim.value() : rows);
    }
    shapes.emplace_back(std::move(dims));
  }
  return shapes;
}

DevicePlan described(const runtime::Execution& execution) {
  constexpr const char* kKinds[] = {"recordable", "submitted", "on the CPU"};
  const runtime::DeviceUse use = runtime::device_use(execution);
  DevicePlan plan{.copied_bytes = use.copied_bytes};
  for (const auto& [op_type, count] : use.on_cpu) {
    plan.on_cpu.push_back({.op_type = op_type, .count = count});
  }
  for (const runtime::Segment& segment : use.segments) {
    plan.segments.push_back({.kind = kKinds[static_cast<int>(segment.kind)],
                             .kernels = static_cast<std::int64_t>(segment.end - segment.begin),
                             .reason = segment.reason});
  }
  return plan;
}

template <class F>
DevicePlan plan_or_problem(const F& make) {
  try {
    return make();
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& error) {
    return {.problem = error.problem().what};
  }
}

DevicePlan training_plan(const Model& model, const EngineOptions& engine, std::int64_t rows) {
  const Model apart = api::untied(model, /*untie=*/true);
  TrainingOptions options;
  options.engine = engine;
  train::Session session(apart.impl().training_source(), Loss{}, Sgd{}, options);
  return described(session.runner().prepare(shapes_of(session.runner().data_ports(), rows)));
}

DevicePlan inference_plan(const Model& model, const EngineOptions& engine, std::int64_t rows) {
  const train::NumberedModel numbered = train::number_texts(model.impl().working());
  std::unordered_map<const ir::Value*, ir::Value*> map;
  const auto working = std::make_shared<ir::Model>(ir::clone(*numbered.model, &map));
  ir::Graph& graph = *working->graph;
  graph.outputs.clear();
  for (const train::RunnableOutput& output : train::runnable_outputs(*numbered.model->graph)) {
    if (output.value != nullptr) graph.outputs.push_back(map.at(output.value));
  }
  ir::close_defaults(graph);
  passes::fold_batch_norms(graph);
  ir::eliminate_dead_nodes(graph);
  runtime::Executor executor = train::backend_for(engine).executor(working);
  return described(executor.prepare(shapes_of(executor.inputs(), rows)));
}

std::string plan_text(const std::string& title, const DevicePlan& plan) {
  if (!plan.problem.empty()) return fmt::format("{}: no plan: {}\n", title, plan.problem);
  std::string text = title + ": ";
  if (plan.on_cpu.empty()) {
    text += "no operator on the CPU\n";
  } else {
    std::string list;
    for (const OperatorOnCpu& use : plan.on_cpu) {
      list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", use.op_type, use.count);
    }
    text += fmt::format("on the CPU, with {} bytes copied per run: {}\n", plan.copied_bytes, list);
  }
  for (const PlanSegment& segment : plan.segments) {
    text += fmt::format("  {} kernel{} {}{}\n", segment.kernels, segment.kernels == 1 ? "" : "s",
                        segment.kind, segment.reason.empty() ? "" : ": " + segment.reason);
  }
  return text;
}

}  // namespace

std::string DeviceReport::to_text() const {
  if (training.segments.empty() && inference.segments.empty() && device == "cpu") {
    return "device cpu: all operators\n";
  }
  return fmt::format("device {}, {} rows\n", device, rows) + plan_text("training step", training) +
         plan_text("inference", inference);
}

DeviceReport report_device(const Model& model, const std::string& device, std::int64_t rows) {
  DeviceReport report{.device = device, .rows = rows};
  const EngineOptions engine{.device = device, .warn = [](const std::string&) {}};
  report.training = plan_or_problem([&] { return training_plan(model, engine, rows); });
  report.inference = plan_or_problem([&] { return inference_plan(model, engine, rows); });
  return report;
}

}  // namespace onnxgrad
