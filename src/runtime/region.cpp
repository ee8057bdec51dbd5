#include "runtime/region.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "base/check.h"
#include "runtime/finite.h"

namespace onnxgrad::runtime {

Tensor Execution::output_tensor(std::size_t i) const {
  const opdef::TensorDesc desc = output_desc(i);
  return Tensor::view(desc.dtype, desc.dims, const_cast<std::byte*>(output(i)), nullptr).clone();
}

// Runs one subgraph of a dynamic node: its formal inputs, then the captured values.
class Region::BodyRunner {
 public:
  BodyRunner(const ir::Graph& body, const DynamicNode& dynamic, const ir::Model& model,
             const RegionContext& context) {
    auto runner = std::make_shared<ir::Model>();
    runner->functions = model.functions;
    runner->opset_imports = model.opset_imports;
    ir::Graph& graph = *runner->graph;
    graph.name = body.name;
    std::unordered_map<const ir::Value*, ir::Value*> map;
    for (const ir::Value* input : body.inputs)
      map[input] = graph.add_input(input->name, input->type);
    for (const ir::Value* value : dynamic.inputs) {
      if (map.contains(value)) continue;
      map[value] = value->is_constant() ? graph.add_initializer(value->name, value->initializer)
                                        : graph.add_input(value->name, value->type);
    }
    ir::append_nodes(body, graph, map);
    for (const ir::Value* output : body.outputs) graph.outputs.push_back(map.at(output));
    ExecutorOptions options = context.options;
    options.output_blocks.clear();
    options.shape_inputs.clear();
    executor_ = std::make_unique<Executor>(std::move(runner), context.engine, options);
  }

  std::vector<Tensor> run(const std::vector<Tensor>& inputs, const opdef::StepCells& cells) {
    executor_->cells() = cells;
    return executor_->run(inputs);
  }
  const Executor& executor() const { return *executor_; }

 private:
  std::unique_ptr<Executor> executor_;
};

namespace {

class Running {
 public:
  explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
  ~Running() { flag_ = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool& flag_;
};

template <class T>
void append_bytes(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Region::Region(CompiledRegion compiled, RegionContext context)
    : compiled_(std::move(compiled)), context_(context) {
  std::size_t num_args = 0;
  std::size_t num_feeds = 0;
  const auto count = [&num_feeds](const Location& at) {
    if (at.kind == Location::Kind::kFeed) {
      num_feeds = std::max(num_feeds, static_cast<std::size_t>(at.at) + 1);
    }
  };
  for (const PlanStep& step : compiled_.plan.steps) {
    num_args += step.args.size();
    for (const Location& at : step.args) count(at);
  }
  for (const PlanOutput& output : compiled_.plan.outputs) count(output.location);
  for (const Copy& copy : compiled_.plan.copies) count(copy.from);
  feeds_.resize(num_feeds, nullptr);
  feed_slots_.resize(num_feeds);
  args_.resize(num_args, nullptr);
  std::size_t next = 0;
  for (const PlanStep& step : compiled_.plan.steps) {
    calls_.push_back({step.kernel.fn, step.kernel.data.get(), args_.data() + next});
    for (const Location& at : step.args) {
      if (at.kind == Location::Kind::kFeed) {
        feed_slots_[static_cast<std::size_t>(at.at)].push_back(next);
      } else if (at.kind == Location::Kind::kBlock) {
        block_slots_.emplace_back(next, at);
      }
      ++next;
    }
  }
}

Region::~Region() { context_.tails.drop_tails_of(*this); }

void Region::forget(const Region& tail) {
  if (current_tail_ == &tail) current_tail_ = nullptr;
}

std::byte* Region::resolve(const Location& location) const {
  switch (location.kind) {
    case Location::Kind::kArena:
      return arena_ + location.at;
    case Location::Kind::kState:
      return context_.state.addresses[static_cast<std::size_t>(location.at)];
    case Location::Kind::kConstant: {
      // Constants are never written: the planner gives outputs to the arena and the state only.
      const Tensor& constant = compiled_.plan.constants[static_cast<std::size_t>(location.at)];
      return const_cast<std::byte*>(constant.raw());
    }
    case Location::Kind::kFeed:
      return const_cast<std::byte*>(feeds_[static_cast<std::size_t>(location.at)]);
    case Location::Kind::kBlock:
      return location.block < blocks_.size() ? blocks_[location.block].get() + location.at
                                             : nullptr;
    case Location::Kind::kNone:
      break;
  }
  return nullptr;
}

void Region::set_arena(std::byte* arena) {
  arena_ = arena;
  std::size_t next = 0;
  for (const PlanStep& step : compiled_.plan.steps) {
    for (const Location& at : step.args) args_[next++] = resolve(at);
  }
}

void Region::bind(std::size_t i, const std::byte* data) {
  if (i >= feeds_.size()) return;  // an input that this region does not read
  feeds_[i] = data;
  for (const std::size_t slot : feed_slots_[i]) args_[slot] = const_cast<std::byte*>(data);
}

void Region::run() {
  const opdef::Launch launch{.stream = nullptr, .cells = &context_.cells};
  if (context_.profiler.is_on()) {
    run_profiled();
  } else {
    for (const Call& call : calls_) call.fn(call.data, call.args, launch);
  }
  copy_results();
  if (compiled_.tail) {
    const Running running(is_running_);
    run_dynamic();
    prepare_tail().run();
  }
}

// A block that no result holds any more, or a new one.
std::shared_ptr<std::byte> Region::take_block(std::size_t block) {
  constexpr std::size_t kMostPooled = 4;
  std::vector<std::shared_ptr<std::byte>>& pool = block_pool_[block];
  for (const std::shared_ptr<std::byte>& known : pool) {
    if (known.use_count() != 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // the last reader is done
    return known;
  }
  std::shared_ptr<std::byte> fresh = base::allocate_aligned(compiled_.plan.block_bytes[block]);
  if (pool.size() < kMostPooled) pool.push_back(fresh);
  return fresh;
}

std::vector<Tensor> Region::run_keeping(std::span<const Tensor> feeds) {
  const std::size_t num_blocks = compiled_.plan.block_bytes.size();
  block_pool_.resize(num_blocks);
  for (std::size_t b = 0; b < num_blocks; ++b) blocks_.push_back(take_block(b));
  for (const auto& [slot, at] : block_slots_) args_[slot] = resolve(at);
  for (std::size_t i = 0; i < feeds.size(); ++i) bind(i, feeds[i].raw());
  std::vector<Tensor> results;
  try {
    run();
    for (std::size_t i = 0; i < num_outputs(); ++i) results.push_back(kept_output(i, feeds));
  } catch (...) {
    blocks_.clear();
    throw;
  }
  blocks_.clear();
  return results;
}

Tensor Region::kept_output(std::size_t i, std::span<const Tensor> feeds) const {
  if (compiled_.tail) return output_tensor(i);
  const auto& [location, desc] = compiled_.plan.outputs[i];
  const auto place = static_cast<std::size_t>(location.at);
  switch (location.kind) {
    case Location::Kind::kBlock:
      return Tensor::view(desc.dtype, desc.dims, resolve(location), blocks_[location.block]);
    case Location::Kind::kFeed:
      return feeds[place].reshaped(desc.dims);
    case Location::Kind::kConstant:
      return compiled_.plan.constants[place].reshaped(desc.dims);
    default:
      return output_tensor(i);
  }
}

std::int64_t Region::block_bytes() const {
  std::int64_t total = 0;
  for (std::size_t b = 0; b < block_pool_.size(); ++b) {
    total += compiled_.plan.block_bytes[b] * static_cast<std::int64_t>(block_pool_[b].size());
  }
  return total;
}

void Region::run_profiled() {
  Profiler& profiler = context_.profiler;
  if (profiled_generation_ != profiler.generation()) {
    profiles_.clear();
    for (const PlanStep& step : compiled_.plan.steps) profiles_.push_back(profiler.entry(step));
    profiled_generation_ = profiler.generation();
  }
  const opdef::Launch launch{.stream = nullptr, .cells = &context_.cells};
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Profiler::Clock::time_point start = Profiler::Clock::now();
    calls_[i].fn(calls_[i].data, calls_[i].args, launch);
    profiler.record(profiles_[i], start, Profiler::Clock::now());
  }
}

std::optional<NonFinite> Region::run_until_non_finite() {
  const opdef::Launch launch{.stream = nullptr, .cells = &context_.cells};
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].fn(calls_[i].data, calls_[i].args, launch);
    const PlanStep& step = compiled_.plan.steps[i];
    for (const PlanResult& result : step.results) {
      if (all_finite(result.dtype, calls_[i].args[result.arg], result.num_elements)) continue;
      return NonFinite{.node = step.node, .op_type = step.op_type, .value = result.name};
    }
  }
  copy_results();
  if (!compiled_.tail) return std::nullopt;
  const Running running(is_running_);
  run_dynamic();
  return prepare_tail().run_until_non_finite();
}

void Region::copy_results() {
  for (const Copy& copy : compiled_.plan.copies) {
    std::memcpy(resolve(copy.to), resolve(copy.from), static_cast<std::size_t>(copy.bytes));
  }
}

Tensor Region::plan_tensor(std::size_t output) const {
  const PlanOutput& planned = compiled_.plan.outputs[output];
  return Tensor::view(planned.desc.dtype, planned.desc.dims, resolve(planned.location), nullptr);
}

void Region::run_dynamic() {
  dynamic_results_.clear();
  for (const DynamicNode& dynamic : compiled_.dynamic) {
    const ir::Node& node = *dynamic.node;
    std::vector<Tensor> inputs;
    for (const ir::Value* input : node.inputs) {
      inputs.push_back(input == nullptr ? Tensor() : plan_tensor(compiled_.plan_outputs.at(input)));
    }
    const opdef::DynamicFn fn = context_.engine.kernels.dynamic(node.domain, node.op_type);
    dynamic_results_.push_back(
        fn({.node = node,
            .inputs = std::move(inputs),
            .run_subgraph = [&](const ir::Graph& body, std::vector<Tensor> formal) {
              return run_body(body, std::move(formal), dynamic);
            }}));
    ONNXGRAD_ASSERT(dynamic_results_.back().size() >= node.outputs.size());
  }
}

std::vector<Tensor> Region::run_body(const ir::Graph& body, std::vector<Tensor> inputs,
                                     const DynamicNode& dynamic) {
  std::unique_ptr<BodyRunner>& runner = bodies_[&body];
  if (!runner) runner = std::make_unique<BodyRunner>(body, dynamic, *compiled_.model, context_);
  std::unordered_map<const ir::Value*, bool> seen;
  for (const ir::Value* value : body.inputs) seen[value] = true;
  for (const ir::Value* value : dynamic.inputs) {
    if (seen.emplace(value, true).second && !value->is_constant()) {
      inputs.push_back(plan_tensor(compiled_.plan_outputs.at(value)));
    }
  }
  return runner->run(inputs, context_.cells);
}

Region& Region::prepare_tail() {
  std::vector<FeedInfo> infos;
  std::vector<const std::byte*> data;
  std::string key;
  for (const TailFeed& feed : compiled_.tail_feeds) {
    const Tensor tensor = feed.kind == TailFeed::Kind::kPlanOutput
                              ? plan_tensor(feed.index)
                              : dynamic_results_[feed.index][feed.output];
    FeedInfo info{.desc = {.dtype = tensor.dtype(), .dims = tensor.dims()}, .value = {}};
    append_bytes(key, info.desc.dtype);
    append_bytes(key, info.desc.dims.rank());
    for (const std::int64_t dim : info.desc.dims) append_bytes(key, dim);
    if (feed.gives_shape && gives_shape(info.desc)) {
      info.value = tensor;
      key.append(reinterpret_cast<const char*>(tensor.raw()),
                 static_cast<std::size_t>(tensor.size_bytes()));
    }
    infos.push_back(std::move(info));
    data.push_back(tensor.raw());
  }
  current_tail_ = context_.tails.find(*this, key);
  if (current_tail_ == nullptr) {
    // Constants of the tail outlive what they were computed in.
    for (FeedInfo& info : infos) {
      if (info.value.is_defined()) info.value = info.value.clone();
    }
    ++context_.tails.num_compiled;
    auto tail = std::make_unique<Region>(
        compile(*compiled_.tail, infos, context_.engine, context_.options), context_);
    auto arena = base::allocate_aligned(tail->arena_bytes());
    tail->set_arena(arena.get());
    current_tail_ = &context_.tails.add(*this, key, std::move(tail), std::move(arena));
  }
  for (std::size_t i = 0; i < data.size(); ++i) current_tail_->bind(i, data[i]);
  return *current_tail_;
}

const std::byte* Region::output(std::size_t i) const {
  if (compiled_.tail) return current_tail_->output(i);
  return resolve(compiled_.plan.outputs[i].location);
}

std::size_t Region::num_outputs() const {
  return compiled_.tail ? current_tail_->num_outputs() : compiled_.plan.outputs.size();
}

opdef::TensorDesc Region::output_desc(std::size_t i) const {
  if (compiled_.tail) return current_tail_->output_desc(i);
  return compiled_.plan.outputs[i].desc;
}

std::string Region::to_text() const {
  std::string text = compiled_.plan.to_text();
  for (const DynamicNode& dynamic : compiled_.dynamic) {
    text += fmt::format("     dynamic {}\n", dynamic.node->describe());
  }
  if (current_tail_ != nullptr) text += "then " + current_tail_->to_text();
  return text;
}

std::int64_t Region::scratch_bytes() const {
  std::int64_t most = 0;
  for (const PlanStep& step : compiled_.plan.steps)
    most = std::max(most, step.kernel.scratch_bytes);
  return most;
}

std::int64_t Region::constant_bytes() const {
  std::int64_t total = 0;
  for (const Tensor& constant : compiled_.plan.constants) total += constant.size_bytes();
  return total;
}

std::int64_t Region::body_bytes() const {
  std::int64_t total = 0;
  for (const auto& [body, runner] : bodies_) {
    const MemoryUse use = runner->executor().memory();
    total += use.state + use.arena + use.constants + use.dynamic;
  }
  return total;
}

std::int64_t Region::num_body_plans() const {
  std::int64_t total = 0;
  for (const auto& [body, runner] : bodies_) total += runner->executor().num_cached();
  return total;
}

}  // namespace onnxgrad::runtime
