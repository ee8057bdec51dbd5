// Stands in for NVIDIA's driver (libcuda.so.1), stricter than a card: memory has addresses that
// fault, is poisoned, and is checked in every copy; work is done as late as possible, streams in an
// order that ONNXGRAD_STANDIN_SEED chooses, nodes of a graph in any order that its edges allow.
// ONNXGRAD_STANDIN_FAIL=cuMemAllocAsync:2:3 makes a function return 2 (out of memory) at its third
// call and after; ONNXGRAD_STANDIN_WRONG changes the first number of every copy to the host.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hooks.h"
#include "kernels.h"
#include "memory.h"

namespace onnxgrad::cuda_standin {
namespace {

enum Result : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kCaptureUnsupported = 900,
  kInvalidImage = 200,
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "stand-in of the driver: %s\n", what.c_str());
  std::abort();
}

using Work = std::function<int()>;

// A node of a graph: work, or a graph of its own.
struct Graph;
struct Node {
  Work work;
  std::vector<std::size_t> before;  // nodes that it waits for
};
struct Graph {
  std::vector<Node> nodes;
};

struct Event {
  bool is_timed = true;
  std::uint64_t recorded = 0;  // times that it was recorded
  std::uint64_t reached = 0;
  double at_ms = 0;
  // In a capture: what was captured on the stream before it.
  Graph* captured_in = nullptr;
  std::vector<std::size_t> captured;
};

// One piece of a stream's work. It can begin when its events have been reached as often as they had
// been recorded when it was submitted.
struct Task {
  Work work;
  Event* awaited = nullptr;
  std::uint64_t times = 0;
};

struct Stream {
  std::deque<Task> queue;
  Graph* capture = nullptr;
  bool began_capture = false;
  std::vector<std::size_t> last;  // captured nodes that the next one follows
};

struct State {
  std::recursive_mutex mutex;
  Memory memory;
  std::set<Stream*> streams;
  std::deque<Graph> graphs;  // to the end: one that is destroyed may still be queued
  std::mt19937 random{static_cast<unsigned>(
      std::getenv("ONNXGRAD_STANDIN_SEED") ? std::atoi(std::getenv("ONNXGRAD_STANDIN_SEED")) : 1)};
  double clock_ms = 0;
  int lasting = kOk;  // the error after which nothing works

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); }
};
State& state() {
  static auto* one = new State;
  return *one;
}

// An error for the calls of a function from one on; "work" stands for work that runs on a stream.
struct Failure {
  std::string function;
  int error = kOk;
  int from = 1;  // the first call that fails, counted from now
};

Failure failure_of_environment() {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_FAIL");
  if (wanted == nullptr) return {};
  const std::string text = wanted;
  const std::size_t first = text.find(':');
  const std::size_t second = text.find(':', first + 1);
  return {.function = text.substr(0, first),
          .error = std::atoi(text.c_str() + first + 1),
          .from = second == std::string::npos ? 1 : std::atoi(text.c_str() + second + 1)};
}

Failure& failure() {
  static auto* one = new Failure(failure_of_environment());
  return *one;
}

std::map<std::string, std::int64_t, std::less<>>& calls() {
  static auto* one = new std::map<std::string, std::int64_t, std::less<>>;
  return *one;
}

// Counts a call, and returns the error to inject into it; kOk: none.
int entered(const char* function) {
  ++calls()[function];
  Failure& one = failure();
  if (one.function != function || one.error == kOk) return kOk;
  return --one.from < 1 ? one.error : kOk;
}

bool can_begin(const Stream& stream) {
  if (stream.queue.empty()) return false;
  const Task& next = stream.queue.front();
  return state().lasting != kOk  // nothing is done any more
         || next.awaited == nullptr || next.awaited->reached >= next.times;
}

// Does the first task of some stream that can begin.
void do_one() {
  std::vector<Stream*> ready;
  for (Stream* stream : state().streams) {
    if (can_begin(*stream)) ready.push_back(stream);
  }
  if (ready.empty()) die("streams wait for each other");
  std::ranges::sort(ready, [](const Stream* a, const Stream* b) {
    return a->queue.size() != b->queue.size() ? a->queue.size() > b->queue.size() : a < b;
  });
  Stream& stream = *ready[state().below(static_cast<std::uint32_t>(ready.size()))];
  const Task task = std::move(stream.queue.front());
  stream.queue.pop_front();
  state().clock_ms += 0.001;
  if (!task.work || state().lasting != kOk) return;
  const int injected = entered("work");
  const int result = injected != kOk ? injected : task.work();
  if (result != kNotYet) {
    state().lasting = result;
    return;
  }
  stream.queue.push_front(task);
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

int finish(Stream& stream) {
  while (!stream.queue.empty() && state().lasting == kOk) do_one();
  if (state().lasting != kOk) stream.queue.clear();
  return state().lasting;
}

int submit(Stream& stream, Work work) {
  if (state().lasting != kOk) return state().lasting;
  if (stream.capture == nullptr) {
    stream.queue.push_back({.work = std::move(work)});
    return kOk;
  }
  stream.capture->nodes.push_back({.work = std::move(work), .before = stream.last});
  stream.last = {stream.capture->nodes.size() - 1};
  return kOk;
}

// Runs nodes in a random order that their edges allow.
int run_graph(const Graph& graph) {
  std::vector<std::size_t> waits(graph.nodes.size());
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    waits[i] = graph.nodes[i].before.size();
    if (waits[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const std::size_t pick = state().below(static_cast<std::uint32_t>(ready.size()));
    const std::size_t node = ready[pick];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(pick));
    if (const int result = graph.nodes[node].work(); result != kOk) return result;
    for (std::size_t i = node + 1; i < graph.nodes.size(); ++i) {
      const auto& before = graph.nodes[i].before;
      waits[i] -= static_cast<std::size_t>(std::ranges::count(before, node));
      if (waits[i] == 0 && std::ranges::count(before, node) > 0) ready.push_back(i);
    }
  }
  return kOk;
}

Work copy_work(std::function<std::byte*()> to, std::function<const std::byte*()> from,
               std::size_t bytes) {
  return [to = std::move(to), from = std::move(from), bytes] {
    std::byte* const target = to();
    const std::byte* const source = from();
    if (target == nullptr || source == nullptr) return kIllegalAddress;
    std::memcpy(target, source, bytes);
    return kOk;
  };
}

std::function<std::byte*()> on_card(std::uint64_t address, std::size_t bytes) {
  return [address, bytes] { return state().memory.pointer(address, bytes); };
}

struct Pinned {
  std::vector<std::byte> memory;
};

}  // namespace

int submit_work(void* stream, std::function<int()> work) {
  const std::scoped_lock lock(state().mutex);
  return submit(*static_cast<Stream*>(stream), std::move(work));
}

std::byte* card_memory(std::uint64_t address, std::size_t bytes) {
  const std::scoped_lock lock(state().mutex);
  return state().memory.pointer(address, bytes);
}

int injected_error(const char* function) {
  const std::scoped_lock lock(state().mutex);
  return entered(function);
}

}  // namespace onnxgrad::cuda_standin

using namespace onnxgrad::cuda_standin;  // NOLINT: the functions below are C's

#define ENTER(function)                       \
  const std::scoped_lock lock(state().mutex); \
  if (const int error = entered(#function); error != kOk) return error

extern "C" {

// For tests, which count calls and make them fail in the process itself.
std::int64_t onnxgrad_standin_calls(const char* function) {
  const std::scoped_lock lock(state().mutex);
  const auto found = calls().find(function);
  return found == calls().end() ? 0 : found->second;
}
void onnxgrad_standin_fail(const char* function, int error, int from) {
  const std::scoped_lock lock(state().mutex);
  failure() = {.function = function, .error = error, .from = from};
}

int cuInit(unsigned) {
  ENTER(cuInit);
  return kOk;
}
int cuDriverGetVersion(int* version) {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_VERSION");
  *version = wanted ? std::atoi(wanted) : 13000;
  return kOk;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == kInvalidValue   ? "CUDA_ERROR_INVALID_VALUE"
                                      : nullptr;
  return *name == nullptr ? kInvalidValue : kOk;
}
int cuGetErrorString(int result, const char** text) { return cuGetErrorName(result, text); }
int cuDeviceGetCount(int* count) {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_CARDS");
  *count = wanted ? std::atoi(wanted) : 1;
  return kOk;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return kOk;
}
int cuDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "stand-in");
  return kOk;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_CAPABILITY");
  const int capability = wanted ? std::atoi(wanted) : 90;
  *value = attribute == 75   ? capability / 10
           : attribute == 76 ? capability % 10
           : attribute == 16 ? 132
           : attribute == 97 ? 232448
                             : 1;
  return kOk;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = Memory::kCapacity;
  return kOk;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER(cuDevicePrimaryCtxRetain);
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device) + 1);
  return kOk;
}
int cuCtxSetCurrent(void*) { return kOk; }
int cuStreamCreate(void** stream, unsigned) {
  ENTER(cuStreamCreate);
  auto* made = new Stream;
  state().streams.insert(made);
  *stream = made;
  return kOk;
}
int cuStreamDestroy_v2(void* stream) {
  ENTER(cuStreamDestroy);
  auto* one = static_cast<Stream*>(stream);
  finish(*one);
  state().streams.erase(one);
  delete one;
  return kOk;
}
int cuStreamSynchronize(void* stream) {
  ENTER(cuStreamSynchronize);
  auto& one = *static_cast<Stream*>(stream);
  if (one.capture != nullptr) return kCaptureUnsupported;
  return finish(one);
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  ENTER(cuStreamWaitEvent);
  auto& one = *static_cast<Stream*>(stream);
  auto& awaited = *static_cast<Event*>(event);
  if (awaited.captured_in != nullptr) {
    one.capture = awaited.captured_in;  // it joins the capture
    one.last.insert(one.last.end(), awaited.captured.begin(), awaited.captured.end());
    return kOk;
  }
  if (one.capture != nullptr) return kOk;  // of work before the capture
  one.queue.push_back({.work = nullptr, .awaited = &awaited, .times = awaited.recorded});
  return kOk;
}

int cuEventCreate(void** event, unsigned flags) {
  ENTER(cuEventCreate);
  auto* made = new Event;
  made->is_timed = (flags & 2U) == 0;
  *event = made;
  return kOk;
}
int cuEventRecord(void* event, void* stream) {
  ENTER(cuEventRecord);
  auto& one = *static_cast<Event*>(event);
  auto& on = *static_cast<Stream*>(stream);
  if (on.capture != nullptr) {
    one.captured_in = on.capture;
    one.captured = on.last;
    return kOk;
  }
  one.captured_in = nullptr;
  const std::uint64_t number = ++one.recorded;
  return submit(on, [&one, number] {
    one.reached = std::max(one.reached, number);
    one.at_ms = state().clock_ms;
    return kOk;
  });
}
int cuEventSynchronize(void* event) {
  ENTER(cuEventSynchronize);
  auto& one = *static_cast<Event*>(event);
  while (state().lasting == kOk && one.reached < one.recorded) do_one();
  return state().lasting;
}
int cuEventQuery(void* event) {
  ENTER(cuEventQuery);
  const auto& one = *static_cast<Event*>(event);
  // Whoever asks again and again sees that the work goes on.
  if (one.reached < one.recorded && state().lasting == kOk && state().below(2) == 0) do_one();
  return one.reached < one.recorded ? kNotReady : state().lasting;
}
int cuEventElapsedTime(float* ms, void* from, void* to) {
  ENTER(cuEventElapsedTime);
  const auto& first = *static_cast<Event*>(from);
  const auto& last = *static_cast<Event*>(to);
  if (!first.is_timed || !last.is_timed) return kInvalidHandle;
  *ms = static_cast<float>(last.at_ms - first.at_ms);
  return kOk;
}
int cuEventDestroy_v2(void* event) {
  ENTER(cuEventDestroy);
  auto* one = static_cast<Event*>(event);
  while (state().lasting == kOk && one->reached < one->recorded) do_one();
  for (Stream* stream : state().streams) {  // waits for it that have not begun
    for (Task& task : stream->queue) {
      if (task.awaited == one) task.awaited = nullptr;
    }
  }
  delete one;
  return kOk;
}

int cuMemAllocAsync(unsigned long long* memory, std::size_t bytes, void* stream) {
  ENTER(cuMemAllocAsync);
  if (static_cast<Stream*>(stream)->capture != nullptr) return kCaptureUnsupported;
  *memory = state().memory.allocate(bytes);
  return *memory == 0 ? kOutOfMemory : kOk;
}
int cuMemFreeAsync(unsigned long long memory, void* stream) {
  ENTER(cuMemFreeAsync);
  return submit(*static_cast<Stream*>(stream),
                [memory] { return state().memory.free(memory) ? kOk : kInvalidValue; });
}
int cuMemGetInfo_v2(std::size_t* left, std::size_t* all) {
  ENTER(cuMemGetInfo);
  *all = Memory::kCapacity;
  *left = Memory::kCapacity - state().memory.used();
  return kOk;
}
int cuDeviceGetDefaultMemPool(void** pool, int) {
  *pool = &state();
  return kOk;
}
int cuMemPoolSetAttribute(void*, int, void*) { return kOk; }
int cuMemPoolTrimTo(void*, std::size_t) { return kOk; }
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(*memory, 0xFF, bytes);
  return kOk;
}
int cuMemFreeHost(void* memory) {
  std::free(memory);
  return kOk;
}

// From ordinary memory as from pinned memory: it is read when the copy is done, as late as that of
// pinned memory may be.
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void* stream) {
  ENTER(cuMemcpyHtoDAsync);
  const auto* source = static_cast<const std::byte*>(from);
  return submit(*static_cast<Stream*>(stream),
                copy_work(on_card(to, bytes), [source] { return source; }, bytes));
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void* stream) {
  ENTER(cuMemcpyDtoHAsync);
  auto* target = static_cast<std::byte*>(to);
  std::memset(target, 0xFF, bytes);
  auto copy = copy_work([target] { return target; }, on_card(from, bytes), bytes);
  static const bool is_wrong = std::getenv("ONNXGRAD_STANDIN_WRONG") != nullptr;
  return submit(*static_cast<Stream*>(stream), [copy = std::move(copy), target] {
    const int result = copy();
    if (is_wrong) target[0] ^= std::byte{1};
    if (is_wrong) target[2] ^= std::byte{64};
    return result;
  });
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes,
                         void* stream) {
  ENTER(cuMemcpyDtoDAsync);
  return submit(*static_cast<Stream*>(stream),
                copy_work(on_card(to, bytes), on_card(from, bytes), bytes));
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t bytes, void* stream) {
  ENTER(cuMemsetD8Async);
  return submit(*static_cast<Stream*>(stream), [to, value, bytes] {
    std::byte* const target = state().memory.pointer(to, bytes);
    if (target == nullptr) return kIllegalAddress;
    std::memset(target, value, bytes);
    return kOk;
  });
}

int cuModuleLoadData(void** module, const void* image) {
  ENTER(cuModuleLoadData);
  auto made = load_module(image);
  if (made == nullptr) return kInvalidImage;
  *module = made.release();
  return kOk;
}
int cuModuleUnload(void* module) {
  ENTER(cuModuleUnload);
  unload(std::unique_ptr<Module>(static_cast<Module*>(module)));
  return kOk;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER(cuModuleGetFunction);
  *function = find_function(*static_cast<Module*>(module), name);
  return *function == nullptr ? kNotFound : kOk;
}
int cuFuncSetAttribute(void*, int, int) { return kOk; }
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  *value = attribute == 1 ? static_cast<Function*>(function)->shared_bytes : 0;
  return kOk;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned /*shared*/,
                   void* stream, void** parameters, void** /*extra*/) {
  ENTER(cuLaunchKernel);
  const auto& kernel = *static_cast<Function*>(function);
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024 ||
      grid_y > 65535 || grid_z > 65535) {
    return kInvalidValue;
  }
  const auto* given = static_cast<const std::uint64_t*>(parameters[0]);
  std::vector<std::uint64_t> words(given, given + kernel.words);
  return submit(*static_cast<Stream*>(stream), [=, &kernel] {
    std::vector<std::uint64_t> translated = words;
    for (std::uint64_t& word : translated) {  // addresses become pointers
      if (std::byte* const pointer = state().memory.pointer(word, 0)) {
        word = reinterpret_cast<std::uintptr_t>(pointer);
      }
    }
    if (kernel.run == nullptr) die(kernel.name + " runs after its module was unloaded");
    const std::string fault =
        run_grid(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, translated,
                 [](std::uint32_t bound) { return state().below(bound); });
    if (!fault.empty() && !only_reports_races()) die(kernel.name + ": " + fault);
    if (!fault.empty()) std::fprintf(stderr, "%s: %s\n", kernel.name.c_str(), fault.c_str());
    return kOk;
  });
}

int cuStreamBeginCapture_v2(void* stream, int) {
  ENTER(cuStreamBeginCapture);
  auto& one = *static_cast<Stream*>(stream);
  if (one.capture != nullptr) return kCaptureUnsupported;
  one.capture = &state().graphs.emplace_back();
  one.began_capture = true;
  one.last.clear();
  return kOk;
}
int cuStreamEndCapture(void* stream, void** graph) {
  ENTER(cuStreamEndCapture);
  auto& one = *static_cast<Stream*>(stream);
  if (!one.began_capture) return kInvalidValue;
  *graph = one.capture;
  std::set<std::size_t> followed(one.last.begin(), one.last.end());
  for (Stream* other : state().streams) {
    if (other->capture != one.capture) continue;
    // Everything that was captured on a stream that joined has to be waited for.
    for (const std::size_t node : other->last) {
      const bool is_joined = followed.contains(node) ||
                             std::ranges::any_of(one.capture->nodes, [&](const Node& later) {
                               return std::ranges::find(later.before, node) != later.before.end();
                             });
      if (!is_joined) die("a capture ends while a stream that joined it has unjoined work");
    }
  }
  for (Stream* other : state().streams) {
    if (other == &one || other->capture != one.capture) continue;
    other->capture = nullptr;
    other->last.clear();
  }
  one.capture = nullptr;
  one.began_capture = false;
  one.last.clear();
  return kOk;
}

int cuGraphCreate(void** graph, unsigned) {
  ENTER(cuGraphCreate);
  *graph = &state().graphs.emplace_back();
  return kOk;
}
int cuGraphDestroy(void*) { return kOk; }
int cuGraphAddChildGraphNode(void** node, void* graph, void* const* before, std::size_t count,
                             void* child) {
  ENTER(cuGraphAddChildGraphNode);
  auto& parent = *static_cast<Graph*>(graph);
  Node made;
  made.work = [copy = *static_cast<Graph*>(child)] { return run_graph(copy); };
  for (std::size_t i = 0; i < count; ++i) {
    made.before.push_back(reinterpret_cast<std::uintptr_t>(before[i]) - 1);
  }
  parent.nodes.push_back(std::move(made));
  *node = reinterpret_cast<void*>(parent.nodes.size());
  return kOk;
}
int cuGraphInstantiateWithFlags(void** instance, void* graph, unsigned long long) {
  ENTER(cuGraphInstantiate);
  *instance = &state().graphs.emplace_back(*static_cast<Graph*>(graph));
  return kOk;
}
int cuGraphUpload(void*, void*) { return kOk; }
int cuGraphLaunch(void* instance, void* stream) {
  ENTER(cuGraphLaunch);
  const auto& graph = *static_cast<Graph*>(instance);
  return submit(*static_cast<Stream*>(stream), [&graph] { return run_graph(graph); });
}
int cuGraphExecDestroy(void*) { return kOk; }

}  // extern "C"
