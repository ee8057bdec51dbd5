// Speed-up of training steps on more threads than this machine has processors.
//
//     onnxgrad_thread_simulation MODEL.onnx BATCH CLASSES [threads...]     (default 1 2 8 16 32 64)
//
// A plan for that many threads runs on one. Each chunk of a kernel is timed, and the times are
// given to simulated threads by the rules of src/device/cpu/threads.h: each begins with its own
// chunks, then takes those that others have not begun. What is counted thus: how evenly work is
// cut, what chunks do more than once, what is not shared at all, and how often threads meet. What
// is not: limits of memory bandwidth, of shared caches and of the clock, by which a real machine is
// slower.
//
// This file takes the place of src/device/cpu/threads.cpp when it is linked.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/threads.h"
#include "onnxgrad/onnxgrad.h"

namespace {

using Clock = std::chrono::steady_clock;

double ns_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

/// Sums over the kernels of a run, in nanoseconds.
struct Sums {
  double chunks = 0;    ///< of all chunks, one after the other
  double parallel = 0;  ///< until the last simulated thread is done
  std::int64_t calls = 0;
};
Sums sums;
bool is_in_part = false;

/// Time from the end of one call's work to the beginning of the next one's: the caller reads a
/// cache line of each other thread, and each of them reads the caller's. A line from another core
/// takes 60 to 100 ns.
double meeting_ns(std::int64_t threads) { return 200 + 80 * static_cast<double>(threads - 1); }

/// Returns when the last of `threads` threads is done with chunks that take `times`.
double end_of(const std::vector<double>& times, std::int64_t threads) {
  struct Own {
    std::int64_t next = 0, end = 0;
  };
  std::vector<Own> own;
  const auto chunks = static_cast<std::int64_t>(times.size());
  for (std::int64_t i = 0; i < threads; ++i) {
    own.push_back({chunks * i / threads, chunks * (i + 1) / threads});
  }
  std::vector<double> free_at(static_cast<std::size_t>(threads), 0.0);
  for (std::int64_t left = chunks; left > 0; --left) {
    const auto first = std::min_element(free_at.begin(), free_at.end());
    const std::int64_t thread = first - free_at.begin();
    for (std::int64_t victim = 0; victim < threads; ++victim) {
      Own& from = own[static_cast<std::size_t>((thread + victim) % threads)];
      if (from.next == from.end) continue;
      const std::int64_t chunk = victim == 0 ? from.next++ : --from.end;
      *first += times[static_cast<std::size_t>(chunk)];
      break;
    }
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

}  // namespace

namespace onnxgrad::device {

void run_on_pool(std::int64_t threads, std::int64_t chunks, ChunkFn part, const void* context) {
  if (is_in_part) return part(context, Chunk{});
  threads = std::min(threads, chunks);
  is_in_part = true;
  std::vector<double> times;
  for (std::int64_t i = 0; i < chunks; ++i) {
    const Clock::time_point begin = Clock::now();
    part(context, {.index = i, .count = chunks, .thread = i * threads / chunks});
    times.push_back(ns_between(begin, Clock::now()));
    sums.chunks += times.back();
  }
  is_in_part = false;
  sums.parallel += end_of(times, threads) + meeting_ns(threads);
  ++sums.calls;
}

void start_threads(std::int64_t /*threads*/) {}
int take_threads_used() { return 1; }

}  // namespace onnxgrad::device

namespace {

/// Rows of a model's input: tokens below 1000, or numbers between -1 and 1.
onnxgrad::Tensor make_rows(const onnxgrad::Model& model, std::int64_t rows) {
  const auto& input = model.inputs().at(0);
  std::vector<std::int64_t> dims;
  for (const auto& dim : *input.shape) dims.push_back(dim.value);
  dims.at(0) = rows;
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) count *= dim;
  if (input.dtype == onnxgrad::DataType::kInt64) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int64_t>(i * 7919 % 1000);
    }
    return onnxgrad::Tensor::from(tokens, onnxgrad::Dims(dims));
  }
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  return onnxgrad::Tensor::from(values, onnxgrad::Dims(dims));
}

/// A step, in nanoseconds; the best of some.
struct Step {
  double alone = 1e18;      ///< on one thread
  double simulated = 1e18;  ///< on several
  double unshared = 0;      ///< of that, outside of chunks
  double waiting = 0;       ///< of that, threads' meetings and waits for the last of them
};

Step measure(const onnxgrad::Model& model, std::int64_t batch, std::int64_t classes, int threads,
             std::int64_t steps) {
  constexpr int kRuns = 4;
  onnxgrad::TrainingOptions options;
  options.engine.threads = threads;
  onnxgrad::Loss loss{.function = onnxgrad::SoftmaxCrossEntropy{}};
  if (model.outputs().at(0).shape->size() > 2) loss.class_axis = -1;
  onnxgrad::Trainer trainer(model, loss, onnxgrad::Adam{}, options);
  const onnxgrad::Tensor x = make_rows(model, steps * batch);
  const auto& output = *model.outputs().at(0).shape;
  std::vector<std::int64_t> places{steps * batch};
  for (std::size_t i = 1; i + 1 < output.size(); ++i) places.push_back(output[i].value);
  std::int64_t count = 1;
  for (const std::int64_t size : places) count *= size;
  std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<std::int64_t>(i * 7) % classes;
  }
  const onnxgrad::Tensor y = onnxgrad::Tensor::from(labels, onnxgrad::Dims(places));
  Step best;
  for (int run = 0; run < kRuns; ++run) {
    sums = {};
    const Clock::time_point begin = Clock::now();
    trainer.fit(x, y,
                {.epochs = 1,
                 .batch_size = batch,
                 .shuffle = false,
                 .on_non_finite = onnxgrad::OnNonFinite::kIgnore});
    const double all = ns_between(begin, Clock::now());
    best.alone = std::min(best.alone, all / static_cast<double>(steps));
    const double simulated = (all - sums.chunks + sums.parallel) / static_cast<double>(steps);
    if (simulated >= best.simulated) continue;
    best.simulated = simulated;
    best.unshared = (all - sums.chunks) / static_cast<double>(steps);
    best.waiting = (sums.parallel - sums.chunks / threads) / static_cast<double>(steps);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fputs("usage: onnxgrad_thread_simulation MODEL.onnx BATCH CLASSES [threads...]\n", stderr);
    return 2;
  }
  const onnxgrad::Model model = onnxgrad::Model::load(argv[1]);
  const std::int64_t batch = std::stol(argv[2]);
  const std::int64_t classes = std::stol(argv[3]);
  std::vector<int> counts;
  for (int i = 4; i < argc; ++i) counts.push_back(std::stoi(argv[i]));
  if (counts.empty()) counts = {1, 2, 8, 16, 32, 64};
  // Steps of a fit, whose beginning and end count for little then.
  constexpr double kLongFitNs = 50e6;
  std::int64_t steps = 4;
  double alone = measure(model, batch, classes, 1, steps).alone;
  if (alone * static_cast<double>(steps) < kLongFitNs) {
    steps *= 16;
    alone = measure(model, batch, classes, 1, steps).alone;
  }
  std::puts("threads  step us  speed-up  efficiency  unshared us  waiting us  meetings");
  for (const int threads : counts) {
    const Step step = measure(model, batch, classes, threads, steps);
    std::printf("%7d %8.0f %9.2f %10.0f%% %12.0f %11.0f %9lld\n", threads, step.simulated / 1e3,
                alone / step.simulated, 100 * alone / step.simulated / threads, step.unshared / 1e3,
                step.waiting / 1e3, static_cast<long long>(sums.calls / steps));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
