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
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "limits.h"
#include "mutator.h"
#include "stages.h"

// Feeds mutated models to everything that a user can do with a file: load it, list its weights,
// report on it, run it, also with hostile feeds, build and run its derivatives, run a forward and a
// backward pass, train a step. Each batch runs
// in a subprocess with limits on memory and time; onnxgrad::Error is the only exception allowed,
// and no subprocess may crash.
//
//   onnxgrad_mutants <folders> <number> [<first mutant> [<processes>]]   all, in parallel
//   onnxgrad_mutants <folders> --one <mutant>        one, in this process, reported in detail
//   onnxgrad_mutants <folders> --limits [<case>]     each integer of each case at its limits
//   onnxgrad_mutants <folders> --write <number> <folder>     <number>.onnx for other tests
//
// <folders>: tests/data/models, optionally followed by a comma and the folder that the test
// DumpCases.WritesTheirModels fills with the models of the operators' cases.

namespace onnxgrad::fuzz {
namespace {

constexpr std::size_t kBatch = 250;  // mutants per subprocess
constexpr std::size_t kProcesses = 2;
constexpr int kSecondsPerMutant = 5;               // processor time
constexpr int kLongestWait = 120;                  // wall time of a mutant, for a deadlock
constexpr std::int64_t kAddressBytes = 3LL << 30;  // address space
constexpr std::int64_t kTensorBytes = 64LL << 20;  // the library's own limit
constexpr std::int64_t kPeakBytes = 384LL << 20;   // resident: a Loop may stack up to its limit

// Progress that a subprocess reports to its parent.
struct Progress {
  std::atomic<std::size_t> current{0};  // the mutant being run
  std::atomic<std::size_t> done{0};
  std::array<std::atomic<std::size_t>, kStages.size()> passed{};  // by stage
  std::atomic<std::size_t> refused{0};                            // by all stages
  std::atomic<std::size_t> failures{0};                           // foreign exceptions
  std::atomic<std::int64_t> peak_bytes{0};  // the most memory that a mutant took
  std::atomic<std::size_t> peak_mutant{0};
};

// Peak resident memory of this process since the last call (or since its start, if the kernel does
// not allow a reset): VmHWM of proc(5). Mapped but untouched pages do not count.
std::int64_t take_peak_bytes() {
  std::int64_t kibibytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) kibibytes = std::atoll(line.c_str() + 6);
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kibibytes << 10;
}

std::string mutant_bytes(const Seeds& seeds, std::size_t mutant) {
  return mutate(seeds.of(mutant).bytes, mutant);
}

void set_limit(int resource, std::int64_t value) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

void limit_time() {
  const itimerval timer{{0, 0}, {kSecondsPerMutant, 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);  // SIGPROF ends the process
  alarm(kLongestWait);                      // so does SIGALRM
}

[[noreturn]] void run_batch(const Seeds& seeds, std::size_t first, std::size_t last,
                            Progress& progress) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  set_limit(RLIMIT_AS, kAddressBytes);
#endif
  set_limit(RLIMIT_CORE, 0);
  const base::MemoryBudgetScope budget(std::make_shared<base::MemoryBudget>(kTensorBytes));
  const auto report_nothing = [](const char*, const std::string&) {};
  for (std::size_t mutant = first; mutant < last; ++mutant) {
    progress.current = mutant;
    limit_time();
    try {
      const Passed passed =
          try_model(mutant_bytes(seeds, mutant), seeds.of(mutant), mutant, true, report_nothing);
      for (std::size_t i = 0; i < passed.size(); ++i) progress.passed.at(i) += passed.at(i) ? 1 : 0;
      if (std::ranges::count(passed, true) == 0) ++progress.refused;
    } catch (const std::exception& error) {
      ++progress.failures;
      std::printf("mutant %zu (of %s): %s\n", mutant, seeds.of(mutant).path.c_str(), error.what());
      std::fflush(stdout);
    }
    const std::int64_t peak = take_peak_bytes();
    if (peak > progress.peak_bytes) {
      progress.peak_bytes = peak;
      progress.peak_mutant = mutant;
    }
    ++progress.done;
  }
  _exit(0);
}

struct Batch {
  std::size_t first = 0;
  std::size_t last = 0;
  Progress* progress = nullptr;
};

Progress* shared_progress() {
  void* memory =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) Progress;
}

// Checks unchanged models: those in kComplete must pass all stages, the others must load (not every
// operator runs on arbitrary numbers), and our errors are the only exceptions allowed.
std::string fault_of(const Seed& seed) {
  std::string failed;
  const auto note = [&](const char* stage, const std::string& result) {
    const bool is_needed = seed.is_complete || stage == kStages[0];
    if (result != "ok" && is_needed) failed += std::string(stage) + ": " + result + "\n";
  };
  try {
    try_model(seed.bytes, seed, 1, false, note);
  } catch (const std::exception& error) {
    failed += error.what();
  }
  return failed;
}

const char* seed_at_work = "";

void name_slow_seed(int /*signal*/) {
  constexpr std::string_view kWhat = ", unchanged: takes too long\n";
  [[maybe_unused]] auto written = write(STDOUT_FILENO, seed_at_work, std::strlen(seed_at_work));
  written = write(STDOUT_FILENO, kWhat.data(), kWhat.size());
  _exit(1);
}

// Mutants of these models reach the stages that they are meant for.
bool check_seeds(const Seeds& seeds) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    bool all_pass = true;
    std::signal(SIGPROF, name_slow_seed);
    for (const Seed* seed : seeds.all()) {
      seed_at_work = seed->path.c_str();
      limit_time();
      const std::string fault = fault_of(*seed);
      if (!fault.empty()) std::printf("%s, unchanged: %s\n", seed->path.c_str(), fault.c_str());
      std::fflush(stdout);
      all_pass = all_pass && fault.empty();
    }
    _exit(all_pass ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) std::printf("an unchanged model: %s\n", strsignal(WTERMSIG(status)));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Runs all batches; after a crash a batch continues with the next mutant.
class Runner {
 public:
  Runner(const Seeds& seeds, std::size_t first, std::size_t count, std::size_t processes)
      : seeds_(seeds), count_(count), processes_(processes) {
    for (std::size_t at = first; at < first + count; at += kBatch) {
      waiting_.push_back({at, std::min(at + kBatch, first + count), nullptr});
    }
    std::ranges::reverse(waiting_);
  }

  int run() {
    const auto start = std::chrono::steady_clock::now();
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && running_.size() < processes_) launch();
      int status = 0;
      const pid_t child = wait(&status);
      if (child < 0) break;
      collect(child, status);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return summarise(elapsed.count());
  }

 private:
  void launch() {
    Batch batch = waiting_.back();
    waiting_.pop_back();
    batch.progress = shared_progress();
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) run_batch(seeds_, batch.first, batch.last, *batch.progress);
    running_[child] = batch;
  }

  void collect(pid_t child, int status) {
    const Batch batch = running_.at(child);
    running_.erase(child);
    const Progress& progress = *batch.progress;
    done_ += progress.done;
    refused_ += progress.refused;
    for (std::size_t i = 0; i < passed_.size(); ++i) passed_.at(i) += progress.passed.at(i);
    failures_ += progress.failures;
    peak_ = std::max(peak_, {progress.peak_bytes.load(), progress.peak_mutant.load()});
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      ++failures_;
      ++done_;
      const std::size_t mutant = progress.current;
      const char* how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit";
      std::printf("mutant %zu (of %s) ended the process: %s\n", mutant,
                  seeds_.of(mutant).path.c_str(), how);
      if (mutant + 1 < batch.last) waiting_.push_back({mutant + 1, batch.last, nullptr});
    }
    std::fflush(stdout);
    munmap(batch.progress, sizeof(Progress));
  }

  int summarise(double seconds) {
    std::printf("%zu mutants in %.1f s, %zu faults; refused at once %zu; passed", done_, seconds,
                failures_, refused_);
    for (std::size_t i = 0; i < passed_.size(); ++i) {
      std::printf("%s %s %zu", i > 0 ? "," : "", kStages.at(i), passed_.at(i));
    }
    std::printf("\nmost memory: %lld MiB, mutant %zu (of %s)\n",
                static_cast<long long>(peak_.first >> 20), peak_.second,
                seeds_.of(peak_.second).path.c_str());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (peak_.first > kPeakBytes) {
      std::printf("that is more than %lld MiB\n", static_cast<long long>(kPeakBytes >> 20));
      ++failures_;
    }
#endif
    if (done_ != count_) {
      std::printf("expected %zu mutants\n", count_);
      return 1;
    }
    // If no mutant passes the first stages, nothing is tested.
    const std::size_t few = count_ / 20;
    const bool gets_nowhere =
        std::ranges::any_of(passed_, [few](std::size_t passed) { return passed < few; });
    if (count_ >= 1000 && (gets_nowhere || refused_ < few)) {
      std::printf("too few mutants are valid, or too few are not\n");
      return 1;
    }
    return failures_ == 0 ? 0 : 1;
  }

  const Seeds& seeds_;
  std::size_t count_;
  std::size_t processes_;
  std::vector<Batch> waiting_;
  std::map<pid_t, Batch> running_;
  std::array<std::size_t, kStages.size()> passed_{};
  std::size_t refused_ = 0;
  std::size_t done_ = 0;
  std::size_t failures_ = 0;
  std::pair<std::int64_t, std::size_t> peak_{0, 0};
};

int run_one(const Seeds& seeds, std::size_t mutant) {
  const std::string bytes = mutant_bytes(seeds, mutant);
  std::ofstream("mutant.onnx", std::ios::binary) << bytes;
  std::printf("mutant %zu of %s, written to mutant.onnx\n", mutant, seeds.of(mutant).path.c_str());
  try_model(bytes, seeds.of(mutant), mutant, true,
            [](const char* stage, const std::string& result) {
              std::printf("%s: %s\n", stage, result.c_str());
              std::fflush(stdout);
            });
  return 0;
}

// Every case in a subprocess of its own; `only` names one, in this process.
int feed_all_limits(const Seeds& seeds, std::string_view only) {
  std::size_t failures = 0;
  std::size_t cases = 0;
  for (const Seed* seed : seeds.all()) {
    if (!seed->is_case || seed->path.find(only) == std::string::npos) continue;
    ++cases;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      const base::MemoryBudgetScope budget(std::make_shared<base::MemoryBudget>(kTensorBytes));
      set_limit(RLIMIT_CORE, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      set_limit(RLIMIT_AS, kAddressBytes);
#endif
      limit_time();
      try {
        (void)feed_limits(*seed);
        (void)change_inputs(*seed);
      } catch (const std::exception& error) {
        std::printf("%s: %s\n", seed->path.c_str(), error.what());
        std::fflush(stdout);
        _exit(1);
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++failures;
    if (WIFSIGNALED(status)) {
      std::printf("%s ended the process: %s\n", seed->path.c_str(), strsignal(WTERMSIG(status)));
    }
  }
  std::printf("%zu cases with integers at their limits and other inputs, %zu faults\n", cases,
              failures);
  return failures == 0 && cases > 0 ? 0 : 1;
}

int write_all(const Seeds& seeds, std::size_t count, const std::string& to) {
  for (std::size_t mutant = 0; mutant < count; ++mutant) {
    std::ofstream file(to + "/" + std::to_string(mutant) + ".onnx", std::ios::binary);
    if (!(file << mutant_bytes(seeds, mutant))) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace onnxgrad::fuzz

int main(int argc, char** argv) {
  if (argc < 3) {
    std::puts(
        "usage: onnxgrad_mutants <folders> (<count> [<first> [<processes>]] | --one <mutant> | "
        "--limits [<case>] | --write <count> <folder>)");
    return 2;
  }
  const onnxgrad::fuzz::Seeds seeds(argv[1]);
  if (std::string_view(argv[2]) == "--one" && argc == 4) {
    return onnxgrad::fuzz::run_one(seeds, std::stoull(argv[3]));
  }
  if (std::string_view(argv[2]) == "--limits") {
    return onnxgrad::fuzz::feed_all_limits(seeds, argc > 3 ? argv[3] : "");
  }
  if (std::string_view(argv[2]) == "--write" && argc == 5) {
    return onnxgrad::fuzz::write_all(seeds, std::stoull(argv[3]), argv[4]);
  }
  const std::size_t first = argc > 3 ? std::stoull(argv[3]) : 0;
  if (!onnxgrad::fuzz::check_seeds(seeds)) return 1;
  const std::size_t processes = argc > 4 ? std::stoull(argv[4]) : onnxgrad::fuzz::kProcesses;
  return onnxgrad::fuzz::Runner(seeds, first, std::stoull(argv[2]), processes).run();
}
