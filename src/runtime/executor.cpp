#include "runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>
#include <list>

#include "base/check.h"
#include "base/parts.h"
#include "device/device_tensor.h"
#include "ir/pointer_map.h"
#include "runtime/arena.h"
#include "runtime/bodies.h"
#include "runtime/device_run.h"
#include "runtime/finite.h"
#include "runtime/input_sizes.h"
#include "runtime/kernel_selection.h"
#include "runtime/packed_graph.h"
#include "runtime/recompute.h"
#include "runtime/region.h"
#include "runtime/tail_cache.h"

namespace onnxgrad::runtime {
namespace {

Port port_of(const ir::Value* value) {
  return {.name = value->name, .type = packed_type(value->type)};
}

}  // namespace

struct Executor::Impl {
  struct Entry {
    std::vector<Dims> dims;
    std::string values;  // bytes of the inputs that it was compiled for by value
    std::unique_ptr<Region> region;
  };

  Impl(std::shared_ptr<const ir::Model> source, const Engine& engine_in, ExecutorOptions options_in)
      : engine(engine_in), options(std::move(options_in)) {
    if (options.cpu) engine.cpu = *options.cpu;
    if (!options.budget) options.budget = base::current_budget();
    max_plans = std::max<std::size_t>(options.max_cached_plans, 1);
    owns_tails = options.tails == nullptr;
    if (owns_tails) options.tails = std::make_shared<TailCache>(max_plans);
    if (!options.stream) options.stream = engine.device.make_stream();
    const base::MemoryBudgetScope scope(options.budget);
    cells.seed = options.seed;
    cells.collectives = options.collectives;
    if (!engine.device.is_host()) device_cells.emplace(engine.device, *options.stream);
    make_program(std::move(source));
    make_state();
  }

  ~Impl() {
    try {
      options.stream->synchronize();  // the state is in use until then
    } catch (...) {                   // NOLINT(bugprone-empty-catch): the results are not needed
    }
  }

  // Inputs that are state and the others, requested outputs and the new state.
  void make_program(std::shared_ptr<const ir::Model> source) {
    program.model = std::move(source);
    program.is_given = true;
    program.output_blocks = options.output_blocks;
    const ir::Model& model = *program.model;
    const ir::Graph& graph = *model.graph;
    std::unordered_map<const ir::Value*, std::size_t> state_of;
    std::vector<const ir::Value*> results(graph.outputs.begin(), graph.outputs.end());
    for (const ir::StateBinding& binding : model.state) {
      if (!binding.input->is_initializer()) {
        throw ModelError({.what = "a state input has no initial value",
                          .where = {.graph = graph.name, .value = binding.input->name},
                          .hint = "Give it an initializer with its name."});
      }
      const Tensor& initial = binding.input->initializer;
      state_of.emplace(binding.input, state_ports.size());
      state_ports.push_back(
          {.name = binding.input->name, .type = ir::Type::tensor(initial.dtype(), initial.dims())});
      initial_state.push_back(initial);
      program.updates.push_back({.input = binding.input, .value = binding.output});
      results.push_back(binding.output);
    }
    for (const ir::Value* input : graph.inputs) {
      if (const auto state = state_of.find(input); state != state_of.end()) {
        program.inputs.push_back({.is_state = true, .index = state->second});
      } else if (input->is_initializer()) {  // a default that no caller overrides
        program.inputs.push_back({.is_constant = true});
      } else {
        program.inputs.push_back({.index = program.num_feeds++});
        input_ports.push_back(port_of(input));
      }
    }
    for (const ir::Value* output : graph.outputs) output_ports.push_back(port_of(output));
    program.keeps_state_if_thrown = !program.updates.empty();
    ONNXGRAD_ASSERT(program.output_blocks.size() <= graph.outputs.size());
    auto problem = find_unsupported(model, engine, results);
    if (problem) throw UnsupportedOperatorError(std::move(*problem));
  }

  void make_state() {
    const Executor* other = std::exchange(options.state_of, nullptr);
    if (other != nullptr && take_over_state(*other->impl_)) return;
    slab = std::make_shared<StateSlab>();
    ArenaLayout layout(engine.device.alignment());
    std::vector<std::int64_t> offsets;
    for (const Tensor& value : initial_state)
      offsets.push_back(layout.allocate(value.size_bytes()));
    slab->memory = engine.device.allocate(layout.size_bytes());
    for (std::size_t i = 0; i < initial_state.size(); ++i) {
      const Tensor& value = initial_state[i];
      slab->addresses.push_back(slab->memory.address + offsets[i]);
      slab->descs.push_back({.dtype = value.dtype(), .dims = value.dims()});
    }
    if (engine.device.is_host()) {
      fill_state();
    } else {
      for (std::size_t i = 0; i < initial_state.size(); ++i) {
        options.stream->copy_in(slab->addresses[i], initial_state[i].raw(),
                                initial_state[i].size_bytes());
      }
    }
    initial_state.clear();
  }

  // Each thread copies a part of the slab, whose pages it is the first to touch.
  void fill_state() {
    for_state_on_host([&](std::size_t i, std::byte* value, std::int64_t first, std::int64_t bytes) {
      std::memcpy(value, initial_state[i].raw() + first, static_cast<std::size_t>(bytes));
    });
  }

  // Calls `work(i, address, first, bytes)` for stretches of the states, which begin at byte `first`
  // of state i: whole elements. Threads share the slab.
  template <class F>
  void for_state_on_host(const F& work) const {
    std::byte* const memory = device::kernel_argument(slab->memory.address);
    const auto work_on = [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < slab->descs.size(); ++i) {
        const std::int64_t offset = device::kernel_argument(slab->addresses[i]) - memory;
        const std::int64_t first = std::max(begin - offset, std::int64_t{0});
        const opdef::TensorDesc& desc = slab->descs[i];
        const std::int64_t last = std::min(end - offset, desc.dims.size_bytes(desc.dtype));
        if (first < last) work(i, memory + offset + first, first, last - first);
      }
    };
    base::in_parts(slab->memory.bytes, options.threads, std::ref(work_on));  // not copied to a heap
  }

  // False: the states of the other are not the same ones.
  bool take_over_state(Impl& other) {
    const auto is_same = [](const Port& a, const Port& b) {
      return a.name == b.name && a.type.dtype == b.type.dtype &&
             a.type.static_dims() == b.type.static_dims();
    };
    if (!std::ranges::equal(state_ports, other.state_ports, is_same)) return false;
    other.options.stream->synchronize();
    slab = other.slab;
    initial_state.clear();
    return true;
  }

  Region& prepare(const std::vector<Dims>& dims, std::span<const Tensor> inputs = {}) {
    std::string values;
    if (!inputs.empty()) {
      for (const std::size_t i : options.shape_inputs) {
        if (!gives_shape({.dtype = inputs[i].dtype(), .dims = dims.at(i)})) continue;
        const auto* bytes = reinterpret_cast<const char*>(inputs[i].raw());
        values.append(bytes, static_cast<std::size_t>(inputs[i].size_bytes()));
      }
    }
    const auto found = std::ranges::find_if(
        entries, [&](const Entry& entry) { return entry.dims == dims && entry.values == values; });
    if (found != entries.end()) {
      entries.splice(entries.begin(), entries, found);
      Region& known = *entries.front().region;
      if (arena.owner == nullptr) fit_arena(known);  // there was no memory for a larger one
      return known;
    }
    if (dims.size() != input_ports.size()) {
      throw DataError(
          {.what = fmt::format("{} inputs given, expected {}", dims.size(), input_ports.size()),
           .hint = "Give one array for each input."});
    }
    const base::MemoryBudgetScope scope(options.budget);
    std::vector<FeedInfo> feeds;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      check_dims(input_ports[i], dims[i]);
      feeds.push_back({.desc = {.dtype = input_ports[i].type.dtype, .dims = dims[i]}, .value = {}});
    }
    if (!inputs.empty()) {
      for (const std::size_t i : options.shape_inputs) {
        if (gives_shape(feeds[i].desc)) feeds[i].value = inputs[i].clone();
      }
    }
    std::vector<bool> is_fed_there(dims.size(), false);  // see described()
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      is_fed_there[i] = inputs[i].raw() == nullptr && inputs[i].size_bytes() > 0;
    }
    CompiledRegion compiled = compile_for(dims, feeds, is_fed_there);
    ++options.tails->num_compiled;
    auto region = std::make_unique<Region>(
        std::move(compiled),
        RegionContext{engine, options, *slab, cells, device_cells ? &*device_cells : nullptr,
                      profiler, *options.tails});
    if (entries.size() >= max_plans) drop_oldest();
    fit_arena(*region);
    entries.push_front({.dims = dims, .values = std::move(values), .region = std::move(region)});
    return *entries.front().region;
  }

  CompiledRegion compile_for(const std::vector<Dims>& dims, const std::vector<FeedInfo>& feeds,
                             const std::vector<bool>& is_fed_there) {
    try {
      MaxArenaBytes max_bytes;
      if (options.fits_budget) {
        max_bytes = [&](const Plan& plan, const PlannedBodies* bodies) {
          return max_arena_bytes(plan, bodies, is_fed_there);
        };
      }
      CompiledRegion region = compile(program, feeds, engine, options, std::move(max_bytes));
      program.is_inferred = true;
      return region;
    } catch (const ArenaTooSmall& error) {
      const std::int64_t limit = engine.device.budget(options.budget)->limit_bytes();
      throw DeviceError(
          {.what = fmt::format("a step does not fit into the memory limit of {} bytes{}", limit,
                               engine.device.is_host() ? "" : " on '" + engine.device.name() + "'"),
           .detail = fmt::format("{} bytes are left for its values, which take {} on these shapes "
                                 "if as many as possible are computed again.",
                                 std::max<std::int64_t>(error.max_bytes, 0), error.least_bytes),
           .hint = fmt::format("The least limit that works is {} bytes; or use a smaller batch.",
                               limit - error.max_bytes + error.least_bytes)});
    } catch (const ShapeError& error) {
      check_sizes(input_ports, dims, error);
      check_tables(*program.model->graph, input_ports, dims, error);
      throw;
    }
  }

  // Bytes left of the budget of the device, the present arena included: a larger one replaces it.
  // On a device that is not the host, constants and inputs are copied there later.
  std::int64_t max_arena_bytes(const Plan& plan, const PlannedBodies* bodies,
                               const std::vector<bool>& is_fed_there) const {
    const auto budget = engine.device.budget(options.budget);
    std::int64_t left =
        budget->limit_bytes() - budget->used_bytes() + engine.device.charged_bytes(arena);
    if (!engine.device.is_host()) {
      left -= DeviceRun::planned_bytes(plan, engine.device, is_fed_there);
      if (bodies != nullptr) left -= bodies->planned_bytes();
    }
    return left;
  }

  void drop_oldest() {
    const auto oldest = std::find_if(entries.rbegin(), entries.rend(),
                                     [](const Entry& entry) { return !entry.region->is_pinned(); });
    if (oldest != entries.rend()) entries.erase(std::next(oldest).base());
  }

  std::vector<Dims> checked_dims(std::span<const Tensor> inputs) const {
    std::vector<Dims> dims;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const DataType expected =
          i < input_ports.size() ? input_ports[i].type.dtype : DataType::kUndefined;
      if (expected != DataType::kUndefined && inputs[i].dtype() != expected) {
        throw DataError({.what = fmt::format("{} given, expected {}", dtype_name(inputs[i].dtype()),
                                             dtype_name(expected)),
                         .where = {.value = input_ports[i].name},
                         .hint = fmt::format("Convert it to {}.", dtype_name(expected))});
      }
      dims.push_back(inputs[i].dims());
    }
    return dims;
  }

  // One arena, sized for the largest plan; all plans move when it grows. Without memory for it they
  // have none, until the next plan is prepared.
  void fit_arena(Region& region) {
    if (arena.owner == nullptr || region.arena_bytes() > arena.bytes) {
      const base::MemoryBudgetScope scope(options.budget);
      options.stream->synchronize();
      for (Entry& entry : entries) entry.region->set_arena({});
      arena = {};
      arena = engine.device.allocate(region.arena_bytes());
      if (engine.device.is_host()) {
        base::populate(device::kernel_argument(arena.address), arena.bytes, options.threads);
      }
      for (Entry& entry : entries) entry.region->set_arena(arena);
    }
    region.set_arena(arena);
  }

  static void check_dims(const Port& port, const Dims& dims) {
    if (!port.type.has_rank()) return;
    const ir::SymbolicShape& expected = *port.type.shape;
    bool fits = expected.size() == dims.rank();
    for (std::size_t i = 0; fits && i < expected.size(); ++i) {
      fits = !expected[i].is_static() || expected[i].value() == dims[i];
    }
    if (fits) return;
    const bool is_batch = expected.size() == dims.rank() && dims.rank() > 0 &&
                          expected[0].is_static() && expected[0].value() != dims[0];
    if (is_batch) {
      throw ShapeError(
          {.what = fmt::format("shape {}, expected {}", dims.to_string(), port.type.to_string()),
           .where = {.value = port.name},
           .hint = fmt::format("The model fixes the first dimension at {}; if it "
                               "counts rows, open_batch() makes it any number.",
                               expected[0].value())});
    }
    throw ShapeError(
        {.what = fmt::format("shape {}, expected {}", dims.to_string(), port.type.to_string()),
         .where = {.value = port.name},
         .hint = "Give an array of the declared shape; named dimensions may have any size."});
  }

  Engine engine;
  ExecutorOptions options;
  std::size_t max_plans = 1;
  bool owns_tails = true;
  Program program;
  std::vector<Port> input_ports;
  std::vector<Port> output_ports;
  std::vector<Port> state_ports;
  std::vector<Tensor> initial_state;
  std::shared_ptr<StateSlab> slab;
  opdef::StepCells cells;
  std::optional<DeviceCells> device_cells;  // none: the device is the host
  Profiler profiler;
  /// Feeds of submitted work.
  struct InUse {
    std::vector<DeviceTensor> tensors;
    std::shared_ptr<const device::Event> last;
  };
  std::list<InUse> in_use;
  std::list<Entry> entries;  // most recently prepared first
  device::Buffer arena;
};

Executor::Executor(std::shared_ptr<const ir::Model> model, const Engine& engine,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), engine, std::move(options))) {}
Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;

const std::vector<Port>& Executor::inputs() const { return impl_->input_ports; }
const std::vector<Port>& Executor::outputs() const { return impl_->output_ports; }
const std::vector<Port>& Executor::state() const { return impl_->state_ports; }

Execution& Executor::prepare(const std::vector<Dims>& input_dims) {
  return impl_->prepare(input_dims);
}

device::Address Executor::state_address(std::size_t i) const {
  return impl_->slab->addresses.at(i);
}

Tensor Executor::read_state(std::size_t i) const {
  const opdef::TensorDesc& desc = impl_->slab->descs.at(i);
  const device::Address address = impl_->slab->addresses[i];
  if (!impl_->engine.device.is_host()) return stream()->read(address, desc.dtype, desc.dims);
  return Tensor::view(desc.dtype, desc.dims, device::kernel_argument(address),
                      impl_->slab->memory.owner);
}

void Executor::copy_state(std::span<Tensor> to) const {
  const StateSlab& slab = *impl_->slab;
  ONNXGRAD_ASSERT(to.size() == slab.descs.size());
  if (impl_->engine.device.is_host()) {
    impl_->for_state_on_host(
        [&](std::size_t i, const std::byte* value, std::int64_t first, std::int64_t bytes) {
          std::memcpy(to[i].mutable_raw() + first, value, static_cast<std::size_t>(bytes));
        });
    return;
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    stream()->copy_out(to[i].mutable_raw(), slab.addresses[i], to[i].size_bytes());
  }
  stream()->synchronize();
}

void Executor::set_state(std::size_t i, const Tensor& value) {
  const opdef::TensorDesc& desc = impl_->slab->descs.at(i);
  if (value.dtype() != desc.dtype || value.dims() != desc.dims) {
    throw ShapeError({.what = fmt::format("{}{} given, expected {}{}", dtype_name(value.dtype()),
                                          value.dims().to_string(), dtype_name(desc.dtype),
                                          desc.dims.to_string()),
                      .where = {.value = impl_->state_ports[i].name},
                      .hint = "Give the state of a session of this model."});
  }
  ++impl_->slab->changes;
  stream()->copy_in(impl_->slab->addresses[i], value.raw(), value.size_bytes());
}

std::uint64_t Executor::state_changes() const { return impl_->slab->changes; }

bool Executor::is_state_finite() const {
  const StateSlab& slab = *impl_->slab;
  if (!impl_->engine.device.is_host()) {
    std::vector<Tensor> values;
    for (const opdef::TensorDesc& desc : slab.descs) {
      values.push_back(Tensor::empty(desc.dtype, desc.dims));
    }
    copy_state(values);  // with one wait
    return all_finite(values);
  }
  std::atomic<bool> is_finite = true;
  impl_->for_state_on_host(
      [&](std::size_t i, const std::byte* value, std::int64_t /*first*/, std::int64_t bytes) {
        const DataType dtype = slab.descs[i].dtype;
        if (is_finite && !all_finite(dtype, value, bytes * 8 / size_bits(dtype))) is_finite = false;
      });
  return is_finite;
}

bool Executor::shares_state_with(const Executor& other) const {
  return impl_->slab == other.impl_->slab;
}

device::Device& Executor::device() const { return impl_->engine.device; }

const std::shared_ptr<base::MemoryBudget>& Executor::budget() const {
  return impl_->options.budget;
}

const std::shared_ptr<device::Stream>& Executor::stream() const { return impl_->options.stream; }

opdef::StepCells& Executor::cells() { return impl_->cells; }

std::vector<Tensor> Executor::run(std::span<const Tensor> inputs) {
  ONNXGRAD_ASSERT(impl_->options.output_blocks.empty());
  Region& region = impl_->prepare(impl_->checked_dims(inputs));
  const base::MemoryBudgetScope scope(impl_->options.budget);
  for (std::size_t i = 0; i < inputs.size(); ++i) region.bind(i, inputs[i].raw());
  region.run();
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < impl_->output_ports.size(); ++i) {
    outputs.push_back(region.output_tensor(i));
  }
  stream()->synchronize();  // errors of work that no output depends on
  return outputs;
}

void Executor::prepare_for(std::span<const Tensor> inputs) {
  impl_->prepare(impl_->checked_dims(inputs), inputs);
}

std::vector<Tensor> Executor::run_keeping(std::span<const Tensor> inputs) {
  Region& region = impl_->prepare(impl_->checked_dims(inputs), inputs);
  const base::MemoryBudgetScope scope(impl_->options.budget);
  return region.run_keeping(inputs);
}

std::vector<Tensor> Executor::run_owning(std::span<const Tensor> inputs) {
  Region& region = impl_->prepare(impl_->checked_dims(inputs), inputs);
  const base::MemoryBudgetScope scope(impl_->options.budget);
  return region.run_owning(inputs);
}

bool Executor::has_in_memory(const DeviceTensor& tensor) const {
  return tensor.is_defined() && tensor.impl().device == &impl_->engine.device;
}

void Executor::bind(Execution& plan, std::size_t i, const DeviceTensor& feed) const {
  ONNXGRAD_ASSERT(has_in_memory(feed));
  stream()->wait_for(*feed.impl().ready);
  plan.bind(i, feed.impl().address);
}

void Executor::keep_in_use(std::vector<DeviceTensor> tensors) {
  constexpr std::size_t kMostInUse = 64;
  auto& in_use = impl_->in_use;
  if (!tensors.empty()) in_use.push_back({std::move(tensors), device::mark_on(stream())});
  while (!in_use.empty() && (in_use.front().last->is_done() || in_use.size() > kMostInUse)) {
    try {
      if (!in_use.front().last->is_done()) in_use.front().last->wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): whoever reads results throws it
    }
    in_use.pop_front();
  }
}

// Feeds as plans are made for them: only those in host memory, or whose values give shapes, have
// elements.
std::vector<Tensor> Executor::described(std::span<const DeviceTensor> inputs) const {
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& shapes = impl_->options.shape_inputs;
    const bool is_shape = std::ranges::find(shapes, i) != shapes.end() &&
                          gives_shape({.dtype = inputs[i].dtype(), .dims = inputs[i].dims()});
    const bool stays = has_in_memory(inputs[i]) && !is_shape;
    result.push_back(stays ? Tensor::view(inputs[i].dtype(), inputs[i].dims(), nullptr, nullptr)
                           : inputs[i].to_host());
  }
  return result;
}

void Executor::prepare_for(std::span<const DeviceTensor> inputs) { prepare_for(described(inputs)); }

std::vector<DeviceTensor> Executor::run_on_device(std::span<const DeviceTensor> inputs) {
  const std::vector<Tensor> as_given = described(inputs);
  std::vector<DeviceTensor> results;
  if (impl_->engine.device.is_host()) {
    for (Tensor& result : run_owning(as_given)) results.emplace_back(std::move(result));
    return results;
  }
  std::vector<DeviceTensor> feeds;
  std::vector<DeviceTensor> read;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool stays = has_in_memory(inputs[i]);
    feeds.push_back(stays ? device::aligned(inputs[i]) : DeviceTensor(as_given[i]));
    if (stays) read.push_back(feeds.back());
  }
  Region& region = impl_->prepare(impl_->checked_dims(as_given), as_given);
  const base::MemoryBudgetScope scope(impl_->options.budget);
  try {
    results = region.run_on_device(feeds);
  } catch (...) {
    keep_in_use(std::move(read));
    throw;
  }
  keep_in_use(std::move(read));
  return results;
}

std::int64_t Executor::num_compiled() const { return impl_->options.tails->num_compiled; }

std::int64_t Executor::num_cached() const {
  auto total = static_cast<std::int64_t>(impl_->entries.size());
  for (const Impl::Entry& entry : impl_->entries) total += entry.region->num_body_plans();
  if (!impl_->owns_tails) return total;
  impl_->options.tails->for_each(
      [&total](const Region& tail) { total += 1 + tail.num_body_plans(); });
  return total;
}

void Executor::set_profiling(bool on, std::size_t max_events) {
  if (on) {
    impl_->profiler.start(max_events);
  } else {
    impl_->profiler.stop();
  }
}

std::vector<KernelProfile> Executor::profile() const { return impl_->profiler.table(); }
std::string Executor::trace_json() const { return impl_->profiler.trace_json(); }

MemoryUse Executor::memory() const {
  MemoryUse use{.state = impl_->slab->memory.bytes, .arena = impl_->arena.bytes};
  if (impl_->device_cells) {
    use = {.arena = device().charged_bytes(impl_->arena)};
    for (const opdef::TensorDesc& desc : impl_->slab->descs) {
      use.state += desc.dims.size_bytes(desc.dtype);
    }
    use.cells = device().charged_bytes(impl_->device_cells->memory()) +
                device().charged_bytes(impl_->slab->memory) - use.state;
  }
  for (const Impl::Entry& entry : impl_->entries) {
    use.scratch = std::max(use.scratch, entry.region->scratch_bytes());
    use.constants += entry.region->constant_bytes();
    use.blocks += entry.region->block_bytes();
    use.dynamic += entry.region->body_bytes();
    use.slots += entry.region->slot_bytes();
    use.on_host += entry.region->host_bytes();
    const Recomputed& again = entry.region->recomputed();
    if (again.bytes <= use.recomputed_bytes) continue;
    use.recomputed_values = again.values;
    use.recomputed_bytes = again.bytes;
    use.recomputed_flops = again.flops;
  }
  if (!impl_->owns_tails) return use;
  if (impl_->options.packed != nullptr) {
    (device().is_host() ? use.constants : use.on_host) += impl_->options.packed->size_bytes();
  }
  impl_->options.tails->for_each([&, this](const Region& tail) {
    const device::Device& device = this->device();
    use.dynamic += device.is_host() ? tail.arena_bytes() : device.charged_bytes(tail.arena_bytes());
    use.dynamic += tail.constant_bytes() + tail.body_bytes() + tail.slot_bytes();
    use.on_host += tail.host_bytes();
  });
  return use;
}

}  // namespace onnxgrad::runtime
