#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mutator.h"
#include "onnxgrad/onnxgrad.h"

// Changed models through everything that a user can do with a file: load, look at the weights,
// build the gradient, run it, train a step. Runs in subprocesses with limits on memory and time;
// only onnxgrad::Error may leave, and no subprocess may die.
//
//   onnxgrad_mutants <folder of models> <number of mutants> [<first mutant>]   all, in parallel
//   onnxgrad_mutants <folder of models> --one <mutant>        one, in this process, told in detail
//   onnxgrad_mutants <folder of models> --write <number> <folder>     <number>.onnx for other tests

namespace onnxgrad::fuzz {
namespace {

constexpr std::size_t kBatch = 250;  // mutants per subprocess
constexpr int kProcesses = 2;
constexpr int kSecondsPerMutant = 5;                // of processor time
constexpr std::int64_t kBudgetBytes = 256LL << 20;  // that onnxgrad may use
constexpr std::int64_t kAddressBytes = 3LL << 30;   // that the process may map
constexpr std::int64_t kPeakBytes = 128LL << 20;    // that it may have in memory
constexpr std::int64_t kMaxFeedElements = 1 << 14;

struct Seed {
  const char* file;
  Loss loss;
  bool has_loss = false;  ///< among its outputs
};

const std::vector<Seed>& seeds() {
  const Loss squares = {.function = SquaredError{}};
  const Loss squares_of_loss = {.function = SquaredError{}, .output = "loss"};
  static const std::vector<Seed> list = {
      {"sk_mlp_classifier_strings.onnx", {}},
      {"sk_mlp_regressor_two_targets.onnx", {}},
      {"dense_autoencoder_elu.onnx", squares},
      {"dense_mixture_of_experts_loss.onnx", squares_of_loss, true},
      {"contrastive_pair_loss.onnx", squares_of_loss, true},
      {"squeeze_excite.onnx", squares},
      {"vgg_small_batchnorm.onnx", squares},
      {"densenet_block_loss.onnx", squares_of_loss, true},
      {"cond_router.onnx", squares},
      {"rmsnorm_gated_mlp.onnx", squares},
  };
  return list;
}

// What a subprocess tells its parent as it goes.
struct Report {
  std::atomic<std::size_t> current{0};  // the mutant that is being tried
  std::atomic<std::size_t> done{0};
  std::array<std::atomic<std::size_t>, 5> stages{};  // mutants that got through so many stages
  std::atomic<std::size_t> failures{0};              // foreign exceptions
  char message[400] = {};                            // of the first
  std::atomic<std::int64_t> peak_bytes{0};           // the most memory that a mutant took
  std::atomic<std::size_t> peak_mutant{0};
};

// The most memory that this process had resident since the last call (or ever, where the kernel
// does not let it be reset): VmHWM of proc(5). What is only mapped does not count.
std::int64_t take_peak_bytes() {
  std::int64_t kibibytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) kibibytes = std::atoll(line.c_str() + 6);
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kibibytes << 10;
}

// Small numbers; whole ones are sometimes out of any range when `odd` is set.
Tensor make_feed(const ValueInfo& info, Random& random, bool odd) {
  std::vector<std::int64_t> dims;
  std::int64_t elements = 1;
  for (const Dimension& dim : info.shape.value_or(std::vector<Dimension>{{}, {}})) {
    std::int64_t value = dim.is_fixed() ? dim.value : 2;
    value = std::min(value, kMaxFeedElements / std::max<std::int64_t>(elements, 1));
    elements *= value;
    dims.push_back(value);
  }
  Tensor numbers = Tensor::zeros(DataType::kFloat64, Dims(dims));
  const bool is_whole = !is_floating(info.dtype);
  for (double& number : numbers.mutable_data<double>()) {
    const auto draw = static_cast<double>(random.below(1000));
    number = is_whole ? static_cast<double>(random.below(odd && random.one_in(50) ? 1000 : 2))
                      : draw / 500 - 1;
  }
  if (info.dtype == DataType::kString) {
    return Tensor::from_strings(std::vector<std::string>(static_cast<std::size_t>(elements), "a"),
                                Dims(dims));
  }
  const bool is_known = is_whole
                            ? is_integer(info.dtype) || info.dtype == DataType::kBool
                            : info.dtype == DataType::kFloat32 || info.dtype == DataType::kFloat64;
  return is_known ? numbers.cast(info.dtype) : Tensor::zeros(info.dtype, Dims(dims));
}

NamedTensors make_feeds(const std::vector<ValueInfo>& inputs, Random& random, bool odd) {
  NamedTensors feeds;
  for (const ValueInfo& input : inputs)
    feeds.push_back({input.name, make_feed(input, random, odd)});
  return feeds;
}

// Every stage is tried, whatever became of the one before. Returns how many succeeded.
template <class Tell>
std::size_t try_mutant(const std::string& bytes, const Seed& seed_model, std::uint64_t seed,
                       bool odd, const Tell& tell) {
  Random random(seed);
  const EngineOptions engine{.threads = 1, .memory_limit_bytes = kBudgetBytes};
  std::size_t passed = 0;
  const auto stage = [&](const char* name, const auto& body) {
    try {
      body();
      ++passed;
      tell(name, "ok");
    } catch (const Error& error) {
      tell(name, std::string(error.kind()) + ": " + error.what());
      if (error.kind() == "InternalError") throw std::runtime_error(error.what());
    }
  };
  std::vector<Model> loaded;
  stage("load",
        [&] { loaded.push_back(Model::from_bytes(bytes, {.memory_limit_bytes = kBudgetBytes})); });
  if (loaded.empty()) return passed;
  const Model& model = loaded.front();
  stage("weights", [&] { (void)model.weights(); });
  stage("run", [&] {
    InferenceSession session(model, engine);
    (void)session.run({}, make_feeds(session.inputs(), random, odd));
  });
  stage("gradient", [&] {
    const Model lossy = seed_model.has_loss ? model : add_loss(model, seed_model.loss);
    const Model gradients = gradient(lossy, {.outputs = {"loss"}, .fill_grad = true});
    InferenceSession session(gradients, engine);
    (void)session.run({}, make_feeds(session.inputs(), random, odd));
  });
  stage("train", [&] {
    TrainingSession session(model, seed_model.loss, Sgd{.learning_rate = 0.01}, {.engine = engine});
    NamedTensors feeds = make_feeds(session.inputs(), random, odd);
    feeds.push_back({session.loss().target.name, make_feed(session.loss().target, random, odd)});
    (void)session.step(feeds);
    (void)session.trained_model();
  });
  return passed;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Seed& seed_of(std::size_t mutant) { return seeds()[mutant % seeds().size()]; }

std::string mutant_bytes(const std::string& folder, std::size_t mutant) {
  static std::map<std::string, std::string> files;
  const std::string path = folder + "/" + seed_of(mutant).file;
  std::string& bytes = files[path];
  if (bytes.empty()) bytes = read_file(path);
  return mutate(bytes, mutant);
}

void set_limit(int resource, std::int64_t value) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

void limit_time() {
  const itimerval timer{{0, 0}, {kSecondsPerMutant, 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);  // SIGPROF ends the process
}

[[noreturn]] void run_batch(const std::string& folder, std::size_t first, std::size_t last,
                            Report& report) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  set_limit(RLIMIT_AS, kAddressBytes);
#endif
  set_limit(RLIMIT_CORE, 0);
  const auto tell_nothing = [](const char*, const std::string&) {};
  for (std::size_t mutant = first; mutant < last; ++mutant) {
    report.current = mutant;
    limit_time();
    try {
      const std::size_t passed =
          try_mutant(mutant_bytes(folder, mutant), seed_of(mutant), mutant, true, tell_nothing);
      ++report.stages[std::min<std::size_t>(passed, 4)];
    } catch (const std::exception& error) {
      if (report.failures++ == 0) {
        std::snprintf(report.message, sizeof report.message, "mutant %zu: %s", mutant,
                      error.what());
      }
    }
    const std::int64_t peak = take_peak_bytes();
    if (peak > report.peak_bytes) {
      report.peak_bytes = peak;
      report.peak_mutant = mutant;
    }
    ++report.done;
  }
  _exit(0);
}

struct Batch {
  std::size_t first = 0;
  std::size_t last = 0;
  Report* report = nullptr;
};

Report* shared_report() {
  void* memory =
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Report;
}

// Every unchanged model must get through all stages: its mutants then reach what they attack.
bool check_seeds(const std::string& folder) {
  bool all_pass = true;
  for (const Seed& seed : seeds()) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      limit_time();
      std::string failed;
      const auto tell = [&failed](const char* stage, const std::string& result) {
        if (result != "ok") failed += std::string(stage) + ": " + result + "\n";
      };
      try_mutant(read_file(folder + "/" + seed.file), seed, 1, false, tell);
      if (!failed.empty()) std::printf("%s, unchanged: %s", seed.file, failed.c_str());
      std::fflush(stdout);
      _exit(failed.empty() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status))
      std::printf("%s, unchanged: %s\n", seed.file, strsignal(WTERMSIG(status)));
    all_pass = all_pass && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return all_pass;
}

// Runs all batches; one that dies is continued behind the mutant that it died of.
int run_all(const std::string& folder, std::size_t first, std::size_t count) {
  if (!check_seeds(folder)) return 1;
  std::vector<Batch> waiting;
  for (std::size_t at = first; at < first + count; at += kBatch) {
    waiting.push_back({at, std::min(at + kBatch, first + count), nullptr});
  }
  std::ranges::reverse(waiting);
  std::map<pid_t, Batch> running;
  std::array<std::size_t, 5> stages{};
  std::size_t done = 0;
  std::size_t failures = 0;
  std::pair<std::int64_t, std::size_t> peak{0, 0};
  const auto start = std::chrono::steady_clock::now();
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && running.size() < kProcesses) {
      Batch batch = waiting.back();
      waiting.pop_back();
      batch.report = shared_report();
      std::fflush(stdout);
      const pid_t child = fork();
      if (child == 0) run_batch(folder, batch.first, batch.last, *batch.report);
      running[child] = batch;
    }
    int status = 0;
    const pid_t child = wait(&status);
    if (child < 0) break;
    const Batch batch = running.at(child);
    running.erase(child);
    const Report& report = *batch.report;
    done += report.done;
    for (std::size_t i = 0; i < stages.size(); ++i) stages[i] += report.stages[i];
    failures += report.failures;
    peak = std::max(peak, {report.peak_bytes.load(), report.peak_mutant.load()});
    if (report.failures > 0) std::printf("foreign exception: %s\n", report.message);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++failures;
      ++done;
      const std::size_t mutant = report.current;
      const char* how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit";
      std::printf("mutant %zu (of %s) ended the process: %s\n", mutant, seed_of(mutant).file, how);
      if (mutant + 1 < batch.last) waiting.push_back({mutant + 1, batch.last, nullptr});
    }
    munmap(batch.report, sizeof(Report));
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf(
      "%zu mutants in %.1f s; stages passed: none %zu, one %zu, two %zu, three %zu, more %zu\n",
      done, elapsed.count(), stages[0], stages[1], stages[2], stages[3], stages[4]);
  std::printf("most memory: %lld MiB, mutant %zu (of %s)\n",
              static_cast<long long>(peak.first >> 20), peak.second, seed_of(peak.second).file);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (peak.first > kPeakBytes) {
    std::printf("that is more than %lld MiB\n", static_cast<long long>(kPeakBytes >> 20));
    ++failures;
  }
#endif
  if (done != count) {
    std::printf("expected %zu mutants\n", count);
    return 1;
  }
  // A harness whose mutants never get anywhere would test nothing.
  if (count >= 1000 && (stages[4] < count / 20 || stages[0] < count / 20)) {
    std::printf("too few mutants are valid, or too few are not\n");
    return 1;
  }
  return failures == 0 ? 0 : 1;
}

int run_one(const std::string& folder, std::size_t mutant) {
  const std::string bytes = mutant_bytes(folder, mutant);
  std::ofstream("mutant.onnx", std::ios::binary) << bytes;
  std::printf("mutant %zu of %s, written to mutant.onnx\n", mutant, seed_of(mutant).file);
  try_mutant(bytes, seed_of(mutant), mutant, true,
             [](const char* stage, const std::string& result) {
               std::printf("%s: %s\n", stage, result.c_str());
               std::fflush(stdout);
             });
  return 0;
}

int write_all(const std::string& folder, std::size_t count, const std::string& to) {
  for (std::size_t mutant = 0; mutant < count; ++mutant) {
    std::ofstream file(to + "/" + std::to_string(mutant) + ".onnx", std::ios::binary);
    if (!(file << mutant_bytes(folder, mutant))) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace onnxgrad::fuzz

int main(int argc, char** argv) {
  if (argc < 3) {
    std::puts(
        "usage: onnxgrad_mutants <folder> (<count> [<first>] | --one <mutant> | "
        "--write <count> <folder>)");
    return 2;
  }
  const std::string folder = argv[1];
  if (std::string_view(argv[2]) == "--one" && argc == 4) {
    return onnxgrad::fuzz::run_one(folder, std::stoull(argv[3]));
  }
  if (std::string_view(argv[2]) == "--write" && argc == 5) {
    return onnxgrad::fuzz::write_all(folder, std::stoull(argv[3]), argv[4]);
  }
  return onnxgrad::fuzz::run_all(folder, argc > 3 ? std::stoull(argv[3]) : 0, std::stoull(argv[2]));
}
