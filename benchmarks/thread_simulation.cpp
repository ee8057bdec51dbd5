// Speed-up of training steps on more threads than this machine has processors.
//
//     onnxgrad_thread_simulation MODEL.onnx BATCH CLASSES [threads...]     (default 2 8 16 32 64)
//
// A plan for that many threads runs on one. Each chunk of a kernel is timed, and the times are
// given to simulated threads by the rules of src/device/cpu/threads.h: each begins with its own
// chunks, then takes those that others have not begun. What is counted thus: how evenly work is
// cut, what chunks do more than once, what is not shared at all, and how often threads meet. What
// is not: limits of memory bandwidth, of shared caches and of the clock, by which a real machine is
// slower. All chunks use the scratch of one thread, which is in the cache as a thread's own would
// be.
//
// This file takes the place of src/device/cpu/threads.cpp when it is linked.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
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

/// A call of a kernel in a step: the least times of many steps, in nanoseconds.
struct Call {
  double before = 1e18;  ///< since the end of the call before
  std::vector<double> chunks = {};
  std::int64_t threads = 1;
};
std::vector<Call> calls;  ///< of a step, in order; empty while they are counted
std::int64_t done = 0;    ///< calls since reset()
Clock::time_point last_end;
bool is_in_part = false;

void reset() {
  done = 0;
  last_end = Clock::now();
}

/// Time that it takes to read the clock.
const double clock_ns = [] {
  double least = 1e9;
  for (int i = 0; i < 1000; ++i) {
    const Clock::time_point begin = Clock::now();
    least = std::min(least, ns_between(begin, Clock::now()));
  }
  return least;
}();

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
  is_in_part = true;
  const Clock::time_point begin = Clock::now();
  Call call{.before = ns_between(last_end, begin), .threads = std::min(threads, chunks)};
  Clock::time_point last = begin;
  for (std::int64_t i = 0; i < chunks; ++i) {
    part(context, {.index = i, .count = chunks, .thread = 0});
    const Clock::time_point now = Clock::now();
    call.chunks.push_back(std::max(ns_between(last, now) - clock_ns, 0.0));
    last = now;
  }
  is_in_part = false;
  if (!calls.empty()) {
    Call& least = calls[static_cast<std::size_t>(done) % calls.size()];
    if (least.chunks.empty()) least = call;
    least.before = std::min(least.before, call.before);
    for (std::size_t i = 0; i < call.chunks.size(); ++i) {
      least.chunks[i] = std::min(least.chunks[i], call.chunks[i]);
    }
  }
  ++done;
  last_end = Clock::now();
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

/// A model in training.
class Training {
 public:
  Training(const onnxgrad::Model& model, std::int64_t batch, std::int64_t classes, int threads)
      : model_(model),
        batch_(batch),
        classes_(classes),
        loss_(loss_of(model)),
        trainer_(model, loss_, onnxgrad::Adam{}, options_of(threads)) {}

  void fit(std::int64_t steps) {
    const onnxgrad::Tensor x = make_rows(model_, steps * batch_);
    const onnxgrad::Tensor y = make_labels(steps * batch_);
    reset();
    onnxgrad::FitOptions options{.epochs = 1,
                                 .batch_size = batch_,
                                 .shuffle = false,
                                 .on_non_finite = onnxgrad::OnNonFinite::kIgnore};
    Clock::time_point last = Clock::now();
    options.on_step_end = [&](const onnxgrad::StepLog&) {
      const Clock::time_point now = Clock::now();
      fastest_step_ = std::min(fastest_step_, ns_between(last, now));
      last = now;
      return false;
    };
    options.every_n_steps = 1;
    trainer_.fit(x, y, options);
  }

  /// Returns the nanoseconds of the fastest step so far.
  double fastest_step() const { return fastest_step_; }

 private:
  static onnxgrad::Loss loss_of(const onnxgrad::Model& model) {
    onnxgrad::Loss loss{.function = onnxgrad::SoftmaxCrossEntropy{}};
    if (model.outputs().at(0).shape->size() > 2) loss.class_axis = -1;
    return loss;
  }
  static onnxgrad::TrainingOptions options_of(int threads) {
    onnxgrad::TrainingOptions options;
    options.engine.threads = threads;
    return options;
  }
  onnxgrad::Tensor make_labels(std::int64_t rows) const {
    const auto& output = *model_.outputs().at(0).shape;
    std::vector<std::int64_t> places{rows};
    for (std::size_t i = 1; i + 1 < output.size(); ++i) places.push_back(output[i].value);
    std::int64_t count = 1;
    for (const std::int64_t size : places) count *= size;
    std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      labels[i] = static_cast<std::int64_t>(i * 7) % classes_;
    }
    return onnxgrad::Tensor::from(labels, onnxgrad::Dims(places));
  }

  const onnxgrad::Model& model_;
  std::int64_t batch_ = 0, classes_ = 0;
  onnxgrad::Loss loss_;
  onnxgrad::Trainer trainer_;
  double fastest_step_ = 1e18;
};

constexpr std::int64_t kSteps = 4;
constexpr double kMeasuredNs = 3e9;
constexpr int kFewestFits = 6;

/// Calls fit() until enough time has passed.
template <class F>
void repeat(const F& fit) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kFewestFits || ns_between(begin, Clock::now()) < kMeasuredNs; ++i) fit();
}

/// Returns the nanoseconds of the fastest step on one thread.
double measure_alone(const onnxgrad::Model& model, std::int64_t batch, std::int64_t classes) {
  Training training(model, batch, classes, 1);
  repeat([&] { training.fit(3 * kSteps); });
  return training.fastest_step();
}

/// A step on several threads, in nanoseconds.
struct Step {
  double all = 0;
  double unshared = 0;  ///< of that, outside of chunks
  double waiting = 0;   ///< of that, threads' meetings and waits for the last of them
};

Step simulate(const onnxgrad::Model& model, std::int64_t batch, std::int64_t classes,
              std::int64_t threads) {
  Training training(model, batch, classes, static_cast<int>(threads));
  calls.clear();
  training.fit(kSteps);
  const std::int64_t few = done;
  training.fit(2 * kSteps);
  const std::int64_t of_step = (done - few) / kSteps;
  if (of_step * kSteps != done - few || of_step * kSteps != few) {
    throw std::runtime_error("steps differ in their kernels");
  }
  calls.assign(static_cast<std::size_t>(of_step), {});
  repeat([&] { training.fit(3 * kSteps); });
  Step step;
  for (const Call& call : calls) {
    double work = 0;
    for (const double time : call.chunks) work += time;
    const double shared = end_of(call.chunks, call.threads) + meeting_ns(call.threads);
    step.unshared += call.before;
    step.waiting += shared - work / static_cast<double>(threads);
    step.all += call.before + shared;
  }
  return step;
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
  if (counts.empty()) counts = {2, 8, 16, 32, 64};
  const double alone = measure_alone(model, batch, classes);
  std::printf("one thread: %.0f us\n", alone / 1e3);
  std::puts("threads  step us  speed-up  efficiency  unshared us  waiting us  meetings");
  for (const int threads : counts) {
    if (threads == 1) continue;
    const Step step = simulate(model, batch, classes, threads);
    std::printf("%7d %8.0f %9.2f %10.0f%% %12.0f %11.0f %9zu\n", threads, step.all / 1e3,
                alone / step.all, 100 * alone / step.all / threads, step.unshared / 1e3,
                step.waiting / 1e3, calls.size());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
