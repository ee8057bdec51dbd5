#include "runtime/region.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>

#include "base/check.h"
#include "base/interrupt.h"
#include "device/host_threads.h"
#include "opdef/collectives.h"
#include "runtime/bodies.h"
#include "runtime/device_series.h"
#include "runtime/finite.h"
#include "runtime/tail_cache.h"

namespace onnxgrad::runtime {

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

}  // namespace

Region::Region(CompiledRegion compiled, RegionContext context)
    : compiled_(std::move(compiled)),
      context_(context),
      on_device_(context.device_cells == nullptr
                     ? nullptr
                     : std::make_unique<DeviceRun>(
                           compiled_.plan, context.engine.device, stream(), *context.device_cells,
                           [this](const Location& at) { return resolve(at); })),
      blocks_(compiled_.plan.block_bytes, context.engine.device),
      feeds_(compiled_.plan.feed_bytes.size()) {
  std::size_t num_args = 0;
  for (const PlanStep& step : compiled_.plan.steps) num_args += step.args.size();
  if (!is_on_host()) num_args += 2 * compiled_.plan.copies.size();
  args_.resize(num_args, nullptr);
  std::size_t next = 0;
  for (const PlanStep& step : compiled_.plan.steps) {
    calls_.push_back({.fn = step.kernel.fn,
                      .data = step.kernel.data.get(),
                      .args = args_.data() + next,
                      .num_args = step.args.size()});
    for (const Location& at : step.args) {
      if (at.kind == Location::Kind::kFeed) {
        feeds_[static_cast<std::size_t>(at.at)].args.push_back(next);
      } else if (at.kind == Location::Kind::kBlock) {
        block_slots_.emplace_back(next, at);
      }
      ++next;
    }
  }
  if (is_on_host()) joint_calls_ = JointCalls(compiled_.plan.steps, calls_);
  for (std::size_t i = 0; !is_on_host() && i < compiled_.plan.copies.size(); ++i) {
    calls_.push_back(on_device_->copy_call(i, args_.data() + next));
    for (const Location& at : {compiled_.plan.copies[i].from, compiled_.plan.copies[i].to}) {
      if (at.kind == Location::Kind::kFeed) {
        feeds_[static_cast<std::size_t>(at.at)].args.push_back(next);
      } else if (at.kind == Location::Kind::kBlock) {
        block_slots_.emplace_back(next, at);
      }
      ++next;
    }
  }
  // Plans of less memory take less than the question between two kernels would be noticed for.
  constexpr std::int64_t kLongRun = 256 << 10;
  is_interruptible_ = !compiled_.plan.updates_state && compiled_.plan.arena_bytes >= kLongRun;
}

Region::~Region() {
  context_.tails.drop_tails_of(*this);
  on_device_.reset();  // waits: what it and the series own is in use until then
}

void Region::forget(const Region& tail) {
  if (current_tail_ == &tail) current_tail_ = nullptr;
}

device::Address Region::resolve(const Location& location) const {
  const auto place = static_cast<std::size_t>(location.at);
  switch (location.kind) {
    case Location::Kind::kArena:
      return arena_.address + location.at;
    case Location::Kind::kState:
      return context_.state.addresses[place];
    case Location::Kind::kConstant:
      // Constants are never written: the planner places outputs only in the arena and the state.
      return is_on_host() ? device::address_of(compiled_.plan.constants[place].raw())
                          : on_device_->constant(place);
    case Location::Kind::kFeed:
      return feeds_[place].address;
    case Location::Kind::kBlock:
      if (!blocks_.has_taken(location.block)) break;
      return blocks_.taken(location.block).address + location.at;
    case Location::Kind::kNone:
      break;
  }
  return device::Address::kNull;
}

void Region::set_arena(device::Buffer arena) {
  const bool is_other = device::Memory(arena_) != device::Memory(arena);
  if (is_other && !is_on_host()) {
    on_device_->forget_recordings();
    context_.tails.for_each_of(*this, [](Region& tail) { tail.forget_recordings(); });
  }
  arena_ = std::move(arena);
  has_arena_ = arena_.owner != nullptr;
  is_plain_ = has_arena_ && is_on_host() && compiled_.plan.copies.empty() && !compiled_.tail;
  std::size_t next = 0;
  for (const PlanStep& step : compiled_.plan.steps) {
    for (const Location& at : step.args) args_[next++] = device::kernel_argument(resolve(at));
  }
  if (is_on_host()) return;
  for (const Copy& copy : compiled_.plan.copies) {
    args_[next++] = device::kernel_argument(resolve(copy.from));
    args_[next++] = device::kernel_argument(resolve(copy.to));
  }
}

void Region::bind(std::size_t i, device::Address data) {
  if (!reads(i)) return;
  if (!is_on_host()) on_device_->release(i, /*is_kept=*/false);
  set_feed(i, data);
}

void Region::bind_kept(std::size_t i, device::Address data) {
  if (!reads(i)) return;
  if (!is_on_host()) on_device_->release(i, /*is_kept=*/true);
  set_feed(i, data);
}

void Region::bind(std::size_t i, const std::byte* data) {
  if (!reads(i)) return;
  set_feed(i, is_on_host() ? device::address_of(data) : on_device_->bind(i, data));
}

void Region::run() {
  ++context_.state.changes;
  if (compiled_.plan.threads > 1) device::start_threads(compiled_.plan.threads);
  if (is_plain_ && !context_.profiler.is_on() && context_.cells.collectives == nullptr) {
    const opdef::Launch launch{.stream = nullptr, .cells = &context_.cells};
    run_calls(launch);
    return;
  }
  run_plan();
  if (compiled_.tail) run_tail();
}

void Region::run_tail() {
  const Running running(is_running_);
  run_dynamic();
  prepare_tail().run();
}

std::vector<Tensor> Region::run_copying(std::span<const std::size_t> outputs) {
  if (compiled_.tail) {
    ++context_.state.changes;
    run_plan();
    const Running running(is_running_);
    run_dynamic();
    return prepare_tail().run_copying(outputs);
  }
  std::vector<Tensor> results;
  results.reserve(outputs.size());
  for (const std::size_t i : outputs) {
    const opdef::TensorDesc& desc = compiled_.plan.outputs[i].desc;
    results.push_back(Tensor::empty(desc.dtype, desc.dims));
  }
  run();
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const device::Address address = resolve(compiled_.plan.outputs[outputs[k]].location);
    Tensor& result = results[k];
    if (result.dtype() == DataType::kString) result = output_tensor(outputs[k]);
    if (result.dtype() == DataType::kString || result.size_bytes() == 0) continue;
    stream().copy_out(result.mutable_raw(), address, result.size_bytes());
  }
  stream().synchronize();
  return results;
}

void Region::check_arena() const {
  if (has_arena_) return;
  throw DeviceError(
      {.what = "there is no memory for the values of this step", .hint = "Use a smaller batch."});
}

// All but the tail.
void Region::run_plan() {
  check_arena();
  if (!is_on_host()) on_device_->copy_feeds();
  if (context_.profiler.is_on()) {
    run_profiled();
  } else if (is_on_host()) {
    const opdef::Launch launch{.stream = nullptr, .cells = &context_.cells};
    if (context_.cells.collectives != nullptr) {
      run_with_workers(launch);
    } else {
      run_calls(launch);
    }
  } else {
    on_device_->run(calls_, context_.cells);
  }
  if (is_on_host()) copy_results();
}

namespace {

// Prefetches the rows that a later step of a series reads. The processor itself prefetches rows in
// order.
void prefetch_rows(const StepSeries& series, std::size_t step) {
  constexpr std::size_t kPrefetchDistance = 4;
  constexpr std::int64_t kLine = 64;
  constexpr std::int64_t kMostBytes = 1024;
  if (step + kPrefetchDistance >= series.first_rows.size()) return;
  const std::int64_t row = series.first_rows[step + kPrefetchDistance];
  for (const StepSeries::Input& input : series.inputs) {
    const std::byte* data = input.data + row * input.row_bytes;
    const std::int64_t bytes = std::min(input.row_bytes, kMostBytes);
    for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(data + at);
  }
}

// Other threads may read the number.
void set_scalar(const StepSeries::Scalar& scalar, double value) {
  if (scalar.dtype == DataType::kFloat64) {
    std::atomic_ref(*reinterpret_cast<double*>(scalar.bound))
        .store(value, std::memory_order_relaxed);
  } else {
    *reinterpret_cast<float*>(scalar.bound) = static_cast<float>(value);
  }
}

}  // namespace

std::size_t Region::run_series(const StepSeries& series, std::span<double> results) {
  ONNXGRAD_ASSERT(series.steps * series.results.size() <= results.size());
  if (!is_on_host()) return run_series_on_device(series, results);
  ONNXGRAD_ASSERT(series.first_rows.size() == series.steps);
  const std::size_t first = series.results.front();
  const std::span<const std::size_t> others = series.results.subspan(1);
  // A small step takes a tenth of a microsecond: what stays the same is found once.
  const PlanOutput& output = compiled_.plan.outputs[first];
  const bool stays = !compiled_.tail && output.location.kind == Location::Kind::kArena;
  const std::byte* const at = stays ? device::kernel_argument(resolve(output.location)) : nullptr;
  auto kept = results.begin();
  std::size_t done = 0;
  while (done < series.steps) {
    prefetch_rows(series, done);
    const std::int64_t row = series.first_rows[done];
    for (const StepSeries::Input& input : series.inputs) {
      if (!reads(input.number)) continue;
      set_feed(input.number, device::address_of(input.data + row * input.row_bytes));
    }
    if (!series.scalar.values.empty()) set_scalar(series.scalar, series.scalar.values[done]);
    run();
    ++context_.cells.step;
    ++done;
    const double result = stays ? device::host_scalar(at, output.desc.dtype) : read_scalar(first);
    *kept++ = result;
    for (const std::size_t other : others) *kept++ = read_scalar(other);
    if (series.ends_at_fault && !std::isfinite(result)) break;
  }
  return done;
}

void Region::run_calls(const opdef::Launch& launch) {
  for (const JointCall& call : joint_calls_) {
    call.run(launch);
    if (is_interruptible_) base::poll_interrupt();
  }
}

// Libraries for messages do nothing by themselves: what has been sent moves on between kernels.
void Region::run_with_workers(const opdef::Launch& launch) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kBetween{200};
  opdef::Collectives& workers = *context_.cells.collectives;
  Clock::time_point last = Clock::now();
  for (const JointCall& call : joint_calls_) {
    call.run(launch);
    const Clock::time_point now = Clock::now();
    if (now - last < kBetween) continue;
    workers.progress();
    last = now;
  }
}

void Region::run_profiled() {
  Profiler& profiler = context_.profiler;
  if (profiled_generation_ != profiler.generation()) {
    profiles_.clear();
    for (const PlanStep& step : compiled_.plan.steps) profiles_.push_back(profiler.entry(step));
    profiled_generation_ = profiler.generation();
  }
  if (!is_on_host()) {
    const auto times = on_device_->run_timed(calls_, context_.cells);
    for (std::size_t i = 0; i < num_kernels(); ++i) {
      profiler.record({.kernel = profiles_[i],
                       .stream = compiled_.plan.steps[i].place.stream,
                       .begin = times[i],
                       .end = times[i + 1]});
    }
    return;
  }
  for (std::size_t i = 0; i < num_kernels(); ++i) {
    const Profiler::Clock::time_point start = Profiler::Clock::now();
    device::take_threads_used();
    run_call(i);
    const int threads = device::take_threads_used();
    profiler.record(profiles_[i], start, Profiler::Clock::now(), threads);
  }
}

// One kernel, until it is done.
void Region::run_call(std::size_t i) {
  if (is_on_host()) {
    calls_[i].fn(calls_[i].data, calls_[i].args, {.stream = nullptr, .cells = &context_.cells});
  } else {
    on_device_->run_alone(i, calls_, context_.cells);
  }
}

// Among the results of a kernel that has run.
std::optional<NonFinite> Region::find_non_finite(std::size_t call) const {
  const PlanStep& step = compiled_.plan.steps[call];
  for (const PlanResult& result : step.results) {
    Tensor values = result_of(call, result);
    const opdef::TensorDesc& desc = result.desc;
    if (!desc.layout.is_plain()) values = in_plain_order(values, desc.dims, desc.layout);
    if (all_finite({&values, 1})) continue;
    return NonFinite{
        .node = step.node, .op_type = step.op_type, .value = result.name, .position = call};
  }
  return std::nullopt;
}

std::optional<NonFinite> Region::run_until_non_finite() {
  if (!is_on_host()) on_device_->copy_feeds();
  // With other workers the step is completed: they wait for what this one sends.
  const bool is_alone = context_.cells.collectives == nullptr;
  std::optional<NonFinite> first;
  for (std::size_t i = 0; i < num_kernels(); ++i) {
    run_call(i);
    if (first) continue;
    first = find_non_finite(i);
    if (first && is_alone) return first;
  }
  copy_results();
  if (!compiled_.tail) return first;
  const Running running(is_running_);
  run_dynamic();
  auto in_tail = prepare_tail().run_until_non_finite();
  if (in_tail) in_tail->position += num_kernels();
  return first ? first : in_tail;
}

void Region::copy_results() {
  if (!is_on_host()) {
    on_device_->finish(calls_);
    return;
  }
  for (const Copy& copy : compiled_.plan.copies) {
    stream().copy(resolve(copy.to), resolve(copy.from), copy.bytes);
  }
}

// Returns a result of a kernel that has run alone; on the CPU a view.
Tensor Region::result_of(std::size_t call, const PlanResult& result) const {
  if (!is_on_host()) return on_device_->result(call, calls_[call], result);
  return Tensor::view(result.desc.dtype, result.desc.dims, calls_[call].args[result.arg], nullptr);
}

// On the CPU a view, else a copy.
Tensor Region::plan_tensor(std::size_t output) const {
  const PlanOutput& planned = compiled_.plan.outputs[output];
  const opdef::TensorDesc& desc = planned.desc;
  if (!is_on_host() && desc.dtype == DataType::kString) return on_device_->texts(planned);
  const device::Address address = resolve(planned.location);
  if (!is_on_host()) return stream().read(address, desc.dtype, desc.dims);
  return Tensor::view(desc.dtype, desc.dims, device::kernel_argument(address), nullptr);
}

void Region::run_dynamic() {
  dynamic_results_.clear();
  for (const DynamicNode& dynamic : compiled_.dynamic) {
    const ir::Node& node = *dynamic.node;
    std::vector<Tensor> inputs;
    for (const ir::Value* input : node.inputs) {
      inputs.push_back(input == nullptr ? Tensor() : plan_tensor(compiled_.plan_outputs.at(input)));
    }
    std::vector<Tensor> captured;
    if (dynamic.closed != nullptr) {
      for (std::size_t i = node.inputs.size(); i < dynamic.closed->inputs.size(); ++i) {
        captured.push_back(plan_tensor(compiled_.plan_outputs.at(dynamic.closed->inputs[i])));
      }
    }
    std::int64_t iteration = 0;
    const opdef::DynamicFn fn = context_.engine.on_host().dynamic(node.domain, node.op_type);
    dynamic_results_.push_back(fn({.node = node,
                                   .inputs = std::move(inputs),
                                   .run_subgraph =
                                       [&](const ir::Graph& body, std::vector<Tensor> formal) {
                                         return run_body(body, std::move(formal), dynamic,
                                                         iteration++);
                                       },
                                   .closed = dynamic.closed,
                                   .captured = std::move(captured),
                                   .bodies = compiled_.bodies.get(),
                                   .cells = &context_.cells}));
    ONNXGRAD_ASSERT(dynamic_results_.back().size() >= node.outputs.size());
  }
}

std::vector<Tensor> Region::run_body(const ir::Graph& body, std::vector<Tensor> inputs,
                                     const DynamicNode& dynamic, std::int64_t iteration) {
  const std::vector<ir::Value*> captured = ir::captured_values(*dynamic.node);
  std::unique_ptr<BodyRunner>& runner = bodies_[&body];
  if (!runner) {
    runner = std::make_unique<BodyRunner>(body, captured, *compiled_.model, context_.engine,
                                          context_.options);
  }
  for (const ir::Value* value : captured) {
    if (!value->is_constant()) inputs.push_back(plan_tensor(compiled_.plan_outputs.at(value)));
  }
  return runner->run(inputs, context_.cells, iteration);
}

Region& Region::prepare_tail() {
  std::vector<FeedInfo> infos;
  std::string key;
  for (const TailFeed& feed : compiled_.tail_feeds) {
    const bool is_planned = feed.kind == TailFeed::Kind::kPlanOutput;
    FeedInfo info;
    if (is_planned) {
      info.desc = compiled_.plan.outputs[feed.index].desc;
    } else {
      const Tensor& tensor = dynamic_results_[feed.index][feed.output];
      info.desc = {.dtype = tensor.dtype(), .dims = tensor.dims()};
    }
    append_desc(key, info.desc);
    if (feed.gives_shape && gives_shape(info.desc)) {
      info.value = is_planned ? plan_tensor(feed.index) : dynamic_results_[feed.index][feed.output];
      key.append(reinterpret_cast<const char*>(info.value.raw()),
                 static_cast<std::size_t>(info.value.size_bytes()));
    }
    infos.push_back(std::move(info));
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
    tail->set_arena(context_.engine.device.allocate(tail->arena_bytes()));
    current_tail_ = &context_.tails.add(*this, key, std::move(tail));
  }
  for (std::size_t i = 0; i < compiled_.tail_feeds.size(); ++i) {
    const TailFeed& feed = compiled_.tail_feeds[i];
    if (feed.kind == TailFeed::Kind::kPlanOutput) {
      bind_to_output(*current_tail_, i, feed.index);
    } else {
      current_tail_->bind(i, dynamic_results_[feed.index][feed.output].raw());
    }
  }
  return *current_tail_;
}

// An input of this region may be anywhere on the device; else its memory changes with the arena.
void Region::bind_to_output(Region& tail, std::size_t feed, std::size_t output) {
  const auto& [location, desc] = compiled_.plan.outputs[output];
  const device::Address address = resolve(location);
  const bool is_elsewhere = !is_on_host() && location.kind == Location::Kind::kFeed &&
                            !on_device_->is_slot(static_cast<std::size_t>(location.at), address);
  if (desc.dtype == DataType::kString) {
    tail.bind(feed, plan_tensor(output).raw());
  } else if (is_elsewhere) {
    tail.bind(feed, address);
  } else {
    tail.bind_kept(feed, address);
  }
}

double Region::read_scalar(std::size_t i) const {
  if (compiled_.tail) return current_tail_->read_scalar(i);
  const PlanOutput& output = compiled_.plan.outputs[i];
  const device::Address address = resolve(output.location);
  return is_on_host() ? device::host_scalar(device::kernel_argument(address), output.desc.dtype)
                      : stream().read_scalar(address, output.desc.dtype);
}

Tensor Region::output_tensor(std::size_t i) const {
  if (compiled_.tail) return current_tail_->output_tensor(i);
  const bool is_text = compiled_.plan.outputs[i].desc.dtype == DataType::kString;
  return is_on_host() || is_text ? plan_tensor(i).clone() : plan_tensor(i);
}

bool Region::may_throw() const {
  return compiled_.plan.may_throw() || (compiled_.tail && current_tail_->may_throw());
}

std::size_t Region::num_outputs() const {
  return compiled_.tail ? current_tail_->num_outputs() : compiled_.plan.outputs.size();
}

opdef::TensorDesc Region::output_desc(std::size_t i) const {
  if (compiled_.tail) return current_tail_->output_desc(i);
  return compiled_.plan.outputs[i].desc;
}

std::optional<opdef::TensorDesc> Region::planned_desc(std::size_t i) const {
  if (compiled_.tail) return std::nullopt;
  return compiled_.plan.outputs[i].desc;
}

std::string Region::to_text() const {
  std::string text = compiled_.plan.to_text();
  for (const DynamicNode& dynamic : compiled_.dynamic) {
    text += fmt::format("     dynamic {}{}\n", dynamic.node->describe(),
                        dynamic.reason.empty() ? "" : ": " + dynamic.reason);
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
  return is_on_host() ? own_constant_bytes() : on_device_->constant_bytes();
}

std::int64_t Region::slot_bytes() const {
  const std::int64_t of_series = series_ ? series_->memory_bytes() : 0;
  return is_on_host() ? 0 : on_device_->slot_bytes() + of_series;
}

std::int64_t Region::host_bytes() const {
  if (is_on_host()) return 0;
  const std::int64_t of_bodies = compiled_.bodies ? compiled_.bodies->host_bytes() : 0;
  return own_constant_bytes() + on_device_->mirror_bytes() + of_bodies;
}

// The constants in host memory.
std::int64_t Region::own_constant_bytes() const {
  const std::string_view known = context_.options.counted_elsewhere;
  const auto* const first = reinterpret_cast<const std::byte*>(known.data());
  const std::less<> less;
  std::int64_t total = compiled_.plan.kept_bytes;
  for (const Tensor& constant : compiled_.plan.constants) {
    const std::byte* at = constant.raw();
    const bool is_known = !less(at, first) && less(at, first + known.size());
    if (!is_known) total += constant.size_bytes();
  }
  return total;
}

std::int64_t Region::body_bytes() const {
  std::int64_t total = 0;
  for (const auto& [body, runner] : bodies_) total += runner->memory_bytes();
  if (compiled_.bodies) total += compiled_.bodies->memory_bytes();
  return total;
}

std::int64_t Region::num_body_plans() const {
  std::int64_t total = 0;
  for (const auto& [body, runner] : bodies_) total += runner->num_plans();
  if (compiled_.bodies) total += compiled_.bodies->num_plans();
  return total;
}

}  // namespace onnxgrad::runtime
