#include "device/cuda/dnn_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "device/cuda/dnn_descriptor.h"
#include "device/cuda/image_cache.h"
#include "device/cuda/timing.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

using dnn_api::finalize;
using dnn_api::link;
using dnn_api::set;

constexpr std::int64_t kMostDnnWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kMostConfigs = 64;
constexpr int kTimedRuns = 3;

/// A cuDNN handle of a card, whose stream each call sets.
struct DnnLibrary {
  Handle handle = nullptr;
  std::mutex mutex;
};
DnnLibrary& dnn_of(const Context& context) {
  static std::mutex mutex;
  static std::map<int, DnnLibrary> libraries;
  const std::scoped_lock lock(mutex);
  DnnLibrary& library = libraries[context.index()];
  if (library.handle == nullptr) check_dnn(dnn().Create(&library.handle), "cudnnCreate");
  return library;
}

bool is_allowed(const DnnRule& rule, const Owned& config) {
  const Owned engine = dnn_descriptor(dnn_api::kEngine);
  Handle handle = engine.get();
  std::int64_t count = 0;
  if (dnn().Get(config.get(), dnn_api::kConfigEngine, dnn_api::kTypeDescriptor, 1, &count,
                static_cast<void*>(&handle)) != kSuccess) {
    return false;
  }
  std::array<int, 16> notes{};
  count = 0;
  if (dnn().Get(handle, dnn_api::kEngineNotes, dnn_api::kTypeNumericalNote,
                static_cast<std::int64_t>(notes.size()), &count, notes.data()) != kSuccess) {
    count = 0;
  }
  const auto has = [&](int note) {
    return std::ranges::find(notes.begin(), notes.begin() + count, note) != notes.begin() + count;
  };
  if (rule.is_strict && (has(dnn_api::kNoteTensorCore) || has(dnn_api::kNoteDownConvert))) {
    return false;
  }
  return !rule.is_deterministic || !has(dnn_api::kNoteNondeterministic);
}

/// The choice among the engines of a graph, as it is kept: a line of numbers, then the plan.
struct DnnChoice {
  std::size_t number = 0;
  double time_us = 0;
  std::string json = {};  ///< empty: cuDNN does not give it

  std::string text() const { return fmt::format("{} {}\n{}", number, time_us, json); }
  static std::optional<DnnChoice> from(const std::string& text) {
    DnnChoice choice;
    std::istringstream stream(text);
    stream >> choice.number >> choice.time_us;
    if (!stream) return std::nullopt;
    const std::size_t end = text.find('\n');
    if (end != std::string::npos) choice.json = text.substr(end + 1);
    return choice;
  }
};

/// A plan that cuDNN has finalized.
struct Made {
  Owned plan;
  bool is_loaded = true;  ///< false: only compiled, without a driver that loads it
  std::int64_t workspace_bytes = 0;
};

// The plan as JSON; empty: this cuDNN, or this engine, gives none.
std::string json_of(const Owned& plan) {
  std::int64_t size = 0;
  const auto get = [&](std::int64_t wanted, char* to) {
    return dnn().Get(plan.get(), dnn_api::kPlanJson, dnn_api::kTypeChar, wanted, &size, to) ==
           kSuccess;
  };
  if (!get(0, nullptr) || size <= 0) return "";
  std::string json(static_cast<std::size_t>(size), '\0');
  if (!get(size, json.data()) || size != std::ssize(json)) return "";
  return json;
}

}  // namespace

/// Finds the plans of a graph, on a card or for the properties of one.
class DnnPlanner {
 public:
  DnnPlanner(const DnnRule& rule, Handle library, Handle device, const DnnPlan::Build& build)
      : rule_(rule), library_(library), device_(device) {
    build(graph_);
  }

  /// Asks for engines.
  void propose() {
    whole_ = dnn_descriptor(dnn_api::kGraph);
    set(whole_.get(), dnn_api::kGraphOperations, dnn_api::kTypeDescriptor,
        std::span<const Handle>(graph_.operations_));
    if (library_ != nullptr) {
      set(whole_, dnn_api::kGraphHandle, dnn_api::kTypeHandle, library_);
    }
    finalize(whole_);
    for (const int mode : {dnn_api::kModeA, dnn_api::kModeFallback}) propose(mode);
  }

  std::size_t num_configs() const { return configs_.size(); }

  /// The plan of a proposal, if it is allowed and can be made.
  std::optional<Made> plan_of(std::size_t number) const {
    if (number >= configs_.size() || !is_allowed(rule_, configs_[number])) return std::nullopt;
    Owned plan = begin_plan();
    link(plan, dnn_api::kPlanConfig, configs_[number].get());
    return end_plan(std::move(plan));
  }

  /// The plan that JSON describes, if cuDNN still makes it.
  std::optional<Made> plan_from(const std::string& json) const {
    if (json.empty()) return std::nullopt;
    Owned plan = begin_plan();
    if (dnn().Set(plan.get(), dnn_api::kPlanJson, dnn_api::kTypeChar, std::ssize(json),
                  json.data()) != kSuccess) {
      return std::nullopt;
    }
    return end_plan(std::move(plan));
  }

  /// A plan without an engine yet.
  std::shared_ptr<DnnPlan> empty_plan(const std::shared_ptr<Context>& context) {
    std::shared_ptr<DnnPlan> plan(new DnnPlan());
    plan->context_ = context;
    plan->uids_ = graph_.uids_;
    plan->uids_.insert(plan->uids_.end(), graph_.constant_uids_.begin(),
                       graph_.constant_uids_.end());
    plan->constants_ = graph_.constants_;
    return plan;
  }

  /// Completes a plan with the engine of a choice. False: it cannot be made.
  static bool take(DnnPlan& plan, std::optional<Made> made, const DnnChoice& choice) {
    if (!made) return false;
    plan.plan_ = std::move(made->plan);
    plan.workspace_bytes_ = made->workspace_bytes;
    plan.time_us_ = choice.time_us;
    return true;
  }

  std::optional<DnnChoice> fastest(const DnnPlan& plan) const {
    Context& context = *plan.context_;
    Handle stream_made = nullptr;
    check(driver().StreamCreate(&stream_made, kNonBlocking), "cuStreamCreate");
    const Owned stream(stream_made, driver().StreamDestroy);
    constexpr unsigned char kFill = 0x3C;  // a number near 0.01 in all types
    std::vector<Buffer> buffers;
    std::vector<std::uint64_t> addresses;
    for (const std::int64_t bytes : graph_.bytes_) {
      buffers.push_back(context.allocate(bytes));
      addresses.push_back(static_cast<std::uint64_t>(buffers.back().address));
      check(driver().MemsetD8Async(addresses.back(), kFill, static_cast<std::size_t>(bytes),
                                   stream.get()),
            "cuMemsetD8Async");
    }
    std::optional<DnnChoice> best;
    for (std::size_t i = 0; i < configs_.size(); ++i) {
      const auto candidate = plan_of(i);
      if (!candidate) continue;
      const Buffer workspace =
          context.allocate(std::max<std::int64_t>(candidate->workspace_bytes, 1));
      const double time = best_time_us(stream.get(), kTimedRuns, [&] {
        return plan.execute(candidate->plan.get(), addresses,
                            static_cast<std::uint64_t>(workspace.address), stream.get());
      });
      if (time == std::numeric_limits<double>::infinity()) continue;
      if (!best || time < best->time_us) best = {.number = i, .time_us = time};
    }
    return best;
  }

 private:
  Owned begin_plan() const {
    Owned plan = dnn_descriptor(dnn_api::kPlan);
    if (library_ != nullptr) {
      set(plan, dnn_api::kPlanHandle, dnn_api::kTypeHandle, library_);
    } else {
      link(plan, dnn_api::kPlanDevice, device_);
    }
    return plan;
  }

  std::optional<Made> end_plan(Owned plan) const {
    Made made{.plan = std::move(plan)};
    const int status = dnn().Finalize(made.plan.get());
    made.is_loaded = status == kSuccess;
    if (library_ == nullptr && status == dnn_api::kFailedInDriver) return made;
    if (!made.is_loaded) return std::nullopt;
    std::int64_t count = 0;
    check_dnn(dnn().Get(made.plan.get(), dnn_api::kPlanWorkspace, dnn_api::kTypeInt64, 1, &count,
                        &made.workspace_bytes),
              "cudnnBackendGetAttribute");
    if (made.workspace_bytes > kMostDnnWorkspace) return std::nullopt;
    return made;
  }

  void propose(int mode) {
    const Owned heuristic = dnn_descriptor(dnn_api::kHeuristic);
    link(heuristic, dnn_api::kHeurGraph, whole_.get());
    set(heuristic, dnn_api::kHeurMode, dnn_api::kTypeHeurMode, mode);
    if (device_ != nullptr) link(heuristic, dnn_api::kHeurDevice, device_);
    if (dnn().Finalize(heuristic.get()) != kSuccess) return;
    std::vector<Owned> proposed;
    std::vector<Handle> handles;
    for (std::int64_t i = 0; i < kMostConfigs; ++i) {
      proposed.push_back(dnn_descriptor(dnn_api::kEngineConfig));
      handles.push_back(proposed.back().get());
    }
    std::int64_t count = 0;
    if (dnn().Get(heuristic.get(), dnn_api::kHeurResults, dnn_api::kTypeDescriptor, kMostConfigs,
                  &count, static_cast<void*>(handles.data())) != kSuccess) {
      return;
    }
    proposed.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMostConfigs)));
    std::ranges::move(proposed, std::back_inserter(configs_));
  }

  DnnRule rule_;
  Handle library_;
  Handle device_;
  DnnGraph graph_;
  Owned whole_;
  std::vector<Owned> configs_;  // best first by cuDNN's reckoning
};

int DnnPlan::execute(Handle plan, std::span<const std::uint64_t> addresses, std::uint64_t workspace,
                     Handle stream) const {
  std::vector<void*> pointers;
  for (const std::uint64_t address : addresses) pointers.push_back(library_pointer(address));
  for (const float& constant : constants_) pointers.push_back(const_cast<float*>(&constant));
  const Owned pack = dnn_descriptor(dnn_api::kVariantPack);
  set(pack.get(), dnn_api::kPackUids, dnn_api::kTypeInt64, std::span<const std::int64_t>(uids_));
  set(pack.get(), dnn_api::kPackPointers, dnn_api::kTypePointer, std::span<void* const>(pointers));
  set(pack, dnn_api::kPackWorkspace, dnn_api::kTypePointer, library_pointer(workspace));
  finalize(pack);
  DnnLibrary& library = dnn_of(*context_);
  const std::scoped_lock lock(library.mutex);
  check_dnn(dnn().SetStream(library.handle, stream), "cudnnSetStream");
  return dnn().Execute(library.handle, plan, pack.get());
}

void DnnPlan::run(std::span<const std::uint64_t> addresses, std::uint64_t workspace,
                  Handle stream) const {
  check_dnn(execute(plan_.get(), addresses, workspace, stream), "cudnnBackendExecute");
}

std::shared_ptr<const DnnPlan> DnnPlan::of(const std::shared_ptr<Context>& context,
                                           const std::string& key, const DnnRule& rule,
                                           const Build& build, std::string& declined) {
  declined = dnn_problem();
  if (!declined.empty()) {
    declined = declined.substr(0, declined.find('\n'));
    return nullptr;
  }
  static std::mutex mutex;
  static std::map<std::string, std::optional<DnnChoice>> chosen;  // nullopt: none computes it
  const std::scoped_lock lock(mutex);
  const std::string whole =
      fmt::format("cudnn {} {} {}: {} {} {}", dnn().GetVersion(), context->name(),
                  context->capability(), rule.is_strict, rule.is_deterministic, key);
  // Offers are asked several times, and attention takes up to a second. Never destroyed: the driver
  // may be gone by then.
  using Plans = std::map<std::pair<int, std::string>, std::shared_ptr<const DnnPlan>>;
  static Plans& plans = *new Plans();
  std::shared_ptr<const DnnPlan>& kept_plan = plans[{context->index(), whole}];
  if (kept_plan != nullptr) return kept_plan;
  declined = "cuDNN has no engine";
  const auto known = chosen.find(whole);
  if (known != chosen.end() && !known->second) return nullptr;
  try {
    context->make_current();
    DnnPlanner planner(rule, dnn_of(*context).handle, nullptr, build);
    std::shared_ptr<DnnPlan> plan = planner.empty_plan(context);
    std::optional<DnnChoice> choice;
    std::optional<std::string> kept;
    if (known != chosen.end()) {
      choice = known->second;
    } else {
      kept = find_image(whole);
      if (kept) choice = DnnChoice::from(*kept);
    }
    if (!choice || !DnnPlanner::take(*plan, planner.plan_from(choice->json), *choice)) {
      planner.propose();
      if (!choice || !DnnPlanner::take(*plan, planner.plan_of(choice->number), *choice)) {
        choice = planner.fastest(*plan);
        chosen[whole] = choice;
        if (!choice || !DnnPlanner::take(*plan, planner.plan_of(choice->number), *choice)) {
          return nullptr;
        }
      }
      choice->json = json_of(plan->plan_);
      if (const std::string text = choice->text(); kept != text) keep_image(whole, text);
    }
    chosen[whole] = choice;
    kept_plan = plan;
    return plan;
  } catch (const DeviceError& error) {
    declined = error.what();
    return nullptr;
  }
}

DnnPlanTest test_dnn_plan(const std::string& device_json, const DnnRule& rule,
                          const DnnPlan::Build& build) {
  const Owned device = dnn_descriptor(dnn_api::kDeviceProperties);
  set(device.get(), dnn_api::kDeviceJson, dnn_api::kTypeChar,
      std::span<const char>(device_json.data(), device_json.size()));
  finalize(device);
  DnnPlanner planner(rule, nullptr, device.get(), build);
  planner.propose();
  for (std::size_t i = 0; i < planner.num_configs(); ++i) {
    const auto made = planner.plan_of(i);
    if (!made) continue;
    if (!made->is_loaded) return DnnPlanTest::kMade;
    const std::string json = json_of(made->plan);
    const auto again = planner.plan_from(json);
    const bool is_same =
        again && again->workspace_bytes == made->workspace_bytes && json_of(again->plan) == json;
    return is_same ? DnnPlanTest::kKept : DnnPlanTest::kChanged;
  }
  return DnnPlanTest::kNone;
}

}  // namespace onnxgrad::device::cuda
