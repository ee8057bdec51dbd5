// Guarantees of checkpoints when a process dies or file calls fail (docs/checkpoints.md):
// each test trains in processes of its own, harms them, and compares with a training that was left
// alone. ONNXGRAD_FAULT_TESTS=long: every call and 150 kills; otherwise a sample of them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "train/checkpoints/checkpoint_folder.h"
#include "train/testing/temporary_folder.h"

namespace onnxgrad::train::checkpoint_faults_test {

namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::IsEmpty;
using train_test::read_bytes;
using train_test::TemporaryFolder;

bool is_long() {
  const char* mode = std::getenv("ONNXGRAD_FAULT_TESTS");
  return mode != nullptr && std::string(mode) == "long";
}

struct Outcome {
  int status = -1;  ///< exit status; -1: killed
  std::string output;
  std::string errors;
  double seconds = 0;

  std::vector<std::string> lines(const std::string& start) const {
    std::vector<std::string> found;
    std::istringstream text(output);
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with(start)) found.push_back(line.substr(start.size()));
    }
    return found;
  }
};

/// Runs the training tool in `folder`; kills it after `kill_after_s`, if that is given.
class Runner {
 public:
  explicit Runner(int epochs) : epochs_(std::to_string(epochs)) {
    fs::create_directory(temporary_.path("disk"));
  }

  /// Folder whose file operations fail.
  std::string disk() const { return temporary_.path("disk"); }
  std::string folder() const { return temporary_.path("disk/run"); }
  std::string path(const std::string& name) const { return temporary_.path(name); }
  std::string result() const { return read_bytes(temporary_.path("result")); }
  std::string log() const { return read_bytes(temporary_.path("log")); }
  void clear() const {
    for (const char* name : {"disk/run", "result", "log"}) fs::remove_all(temporary_.path(name));
  }

  Outcome run(const std::vector<std::string>& environment = {},
              std::optional<double> kill_after_s = {}, const std::string& folder = "") const {
    fs::remove(temporary_.path("log"));
    const std::string where = folder.empty() ? this->folder() : folder;
    const std::string out = temporary_.path("out");
    const std::string err = temporary_.path("err");
    const std::vector<std::string> arguments{ONNXGRAD_CHECKPOINT_TOOL, where, epochs_,
                                             temporary_.path("result")};
    std::vector<std::string> variables = environment;
    if (!environment.empty()) {
      variables.push_back(std::string("LD_PRELOAD=") + ONNXGRAD_FAULT_LIBRARY);
      variables.push_back("ONNXGRAD_FAULT_FOLDER=" + disk());
      variables.push_back("ONNXGRAD_FAULT_LOG=" + temporary_.path("log"));
    }
    for (char** variable = ::environ; *variable != nullptr; ++variable) {
      variables.emplace_back(*variable);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const int flags = O_CREAT | O_TRUNC | O_WRONLY;
    ::posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), flags, 0644);
    ::posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), flags, 0644);
    pid_t process = -1;
    const auto start = steady_clock::now();
    const int error = ::posix_spawn(&process, arguments[0].c_str(), &actions, nullptr,
                                    pointers(arguments).data(), pointers(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error("cannot start " + arguments[0]);
    if (kill_after_s) {
      std::this_thread::sleep_for(duration<double>(*kill_after_s));
      ::kill(process, SIGKILL);
    }
    int status = 0;
    ::waitpid(process, &status, 0);
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .output = read_bytes(out),
            .errors = read_bytes(err),
            .seconds = duration<double>(steady_clock::now() - start).count()};
  }

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  }

  TemporaryFolder temporary_;
  std::string epochs_;
};

std::vector<std::string> names_in(const std::string& folder) {
  return fs::exists(folder) ? base::list_files(folder) : std::vector<std::string>();
}

/// The newest step; every file with a checkpoint's name must be whole.
std::int64_t expect_all_whole(const std::string& folder, const std::string& what) {
  std::int64_t newest = -1;
  for (const std::string& name : names_in(folder)) {
    EXPECT_FALSE(name.ends_with(".bad")) << what;
    const auto step = checkpoint_step(name);
    if (!step) continue;
    EXPECT_NO_THROW((void)read_checkpoint(folder + "/" + name)) << what << " " << name;
    newest = std::max(newest, *step);
  }
  return newest;
}

/// Expects every checkpoint that was reported as saved, or a newer one.
void expect_nothing_lost(const Outcome& outcome, std::int64_t newest, const std::string& what) {
  for (const std::string& path : outcome.lines("saved ")) {
    const auto step = checkpoint_step(fs::path(path).filename().string());
    ASSERT_TRUE(step) << path;
    EXPECT_LE(*step, newest) << what << ": a reported checkpoint is lost";
  }
}

std::size_t count_temporaries(const std::string& folder) {
  std::size_t count = 0;
  for (const std::string& name : names_in(folder)) count += name.starts_with(".") ? 1U : 0U;
  return count;
}

TEST(CheckpointFaults, KilledAtAnyTimeAndResumedIsUninterrupted) {
  const Runner runner(24);
  const Outcome plain = runner.run({}, {}, "-");
  ASSERT_EQ(plain.status, 0) << plain.errors;
  const std::string expected = runner.result();
  ASSERT_FALSE(expected.empty());
  runner.clear();
  const Outcome saving = runner.run();
  ASSERT_EQ(saving.status, 0) << saving.errors;
  EXPECT_EQ(runner.result(), expected);

  const int wanted = is_long() ? 150 : 20;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0.15, 0.6);
  int killed = 0;
  int finished = 0;
  int with_checkpoint = 0;
  for (runner.clear(); killed < wanted;) {
    const Outcome outcome = runner.run({}, share(random) * saving.seconds);
    const std::string what = "kill " + std::to_string(killed);
    const std::int64_t newest = expect_all_whole(runner.folder(), what);
    expect_nothing_lost(outcome, newest, what);
    ASSERT_FALSE(HasFailure());
    if (outcome.status == -1) {
      ++killed;
      with_checkpoint += newest >= 0 ? 1 : 0;
      continue;
    }
    ASSERT_EQ(outcome.status, 0) << outcome.errors;
    ASSERT_EQ(runner.result(), expected) << what;
    ++finished;
    runner.clear();
  }
  const Outcome last = runner.run();
  ASSERT_EQ(last.status, 0) << last.errors;
  EXPECT_EQ(runner.result(), expected);
  EXPECT_EQ(count_temporaries(runner.folder()), 0U);
  EXPECT_GT(with_checkpoint, wanted / 4) << "most kills came before the first checkpoint";
  RecordProperty("killed", killed);
  std::printf("  %d kills, %d of them with checkpoints, %d trainings ended\n", killed,
              with_checkpoint, finished + 1);
}

struct Fault {
  long at = 0;
  std::string kind;
  bool forever = false;

  std::string text() const {
    return kind + " at call " + std::to_string(at) + (forever ? " and from there on" : "");
  }
};

/// A run with one fault, then a run without that continues. `expected` is what comes out unharmed.
void expect_fault_is_survived(const Runner& runner, const Fault& fault,
                              const std::string& expected) {
  const std::string what = fault.text();
  runner.clear();
  const Outcome outcome = runner.run({"ONNXGRAD_FAULT_AT=" + std::to_string(fault.at),
                                      "ONNXGRAD_FAULT_KIND=" + fault.kind,
                                      fault.forever ? "ONNXGRAD_FAULT_FOREVER=1" : "UNUSED=1"});
  const std::string log = runner.log();
  const std::int64_t newest = expect_all_whole(runner.folder(), what);
  expect_nothing_lost(outcome, newest, what);
  if (fault.kind == "kill") {
    EXPECT_EQ(outcome.status, -1) << what;
  } else {
    // A fault before the first step ends the program with a message; later ones end nothing.
    EXPECT_THAT(outcome.status, testing::AnyOf(0, 6)) << what << outcome.errors;
    if (outcome.status == 0) {
      EXPECT_EQ(runner.result(), expected) << what;
    }
    const bool is_loss = log.find("failed create") != std::string::npos ||
                         log.find("failed write") != std::string::npos ||
                         log.find("failed fsync") != std::string::npos ||
                         log.find("failed rename") != std::string::npos;
    if (is_loss) {
      EXPECT_TRUE(outcome.status == 6 || !outcome.lines("problem ").empty())
          << what << " was not reported:\n"
          << log << outcome.output;
    }
    if (log.find("failed unlink") == std::string::npos) {
      EXPECT_EQ(count_temporaries(runner.folder()), 0U) << what;
    }
  }
  const Outcome resumed = runner.run();
  EXPECT_EQ(resumed.status, 0) << what << ": " << resumed.errors;
  EXPECT_EQ(runner.result(), expected) << what;
  expect_all_whole(runner.folder(), what);
}

TEST(CheckpointFaults, EveryFileCallFailsOnce) {
  const Runner runner(2);
  const Outcome plain = runner.run({}, {}, "-");
  ASSERT_EQ(plain.status, 0) << plain.errors;
  const std::string expected = runner.result();
  runner.clear();
  const Outcome counted = runner.run({"ONNXGRAD_FAULT_AT=0"});
  ASSERT_EQ(counted.status, 0) << counted.errors;
  const std::string log = runner.log();
  ASSERT_TRUE(log.starts_with("calls ")) << log << ": was the library loaded?";
  const long calls = std::stol(log.substr(6));
  ASSERT_GT(calls, 20);

  const std::vector<std::string> kinds{"enospc", "eio", "short", "kill"};
  std::size_t runs = 0;
  for (long at = 1; at <= calls; ++at) {
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      // The sample: each call once, the kinds in turn.
      const bool is_chosen = is_long() || static_cast<std::size_t>(at) % kinds.size() == k;
      if (!is_chosen) continue;
      for (const bool forever : {false, true}) {
        if (forever && (!is_long() || kinds[k] == "kill")) continue;
        expect_fault_is_survived(runner, {.at = at, .kind = kinds[k], .forever = forever},
                                 expected);
        ++runs;
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  std::printf("  %zu runs with a fault at one of %ld file calls\n", runs, calls);
}

TEST(CheckpointFaults, AFullDiskIsSaidBeforeWriting) {
  const Runner runner(2);
  ASSERT_EQ(runner.run({}, {}, "-").status, 0);
  const std::string expected = runner.result();
  runner.clear();
  const Outcome outcome = runner.run({"ONNXGRAD_FAULT_FREE=10"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_EQ(runner.result(), expected);
  EXPECT_THAT(outcome.lines("saved "), IsEmpty());
  EXPECT_THAT(outcome.output, HasSubstr("bytes, but 10 are free"));
  EXPECT_THAT(outcome.lines("last "), testing::SizeIs(1));
}

/// The contents of a disk after a power cut, from the mirror that the library wrote.
class PowerCut {
 public:
  enum class Names {
    kFlushed,  ///< the names at the last flush of their folder
    kAll,      ///< all names: the system had written them by itself
  };
  PowerCut(std::string mirror, std::string disk)
      : mirror_(std::move(mirror)), disk_(std::move(disk)) {}

  void restore(Names names, const std::string& to) const {
    fs::remove_all(to);
    restore_folder(names, disk_, inode_of(disk_), to);
  }

 private:
  struct Entry {
    std::uint64_t inode = 0;
    bool is_folder = false;
    std::string name;
  };

  static std::uint64_t inode_of(const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  }

  std::string mirrored(const char* kind, std::uint64_t inode) const {
    return mirror_ + "/" + kind + "-" + std::to_string(inode);
  }

  std::vector<Entry> flushed_names(std::uint64_t folder) const {
    std::istringstream lines(read_bytes(mirrored("folder", folder)));
    std::vector<Entry> entries;
    Entry entry;
    for (std::string kind; lines >> entry.inode >> kind >> entry.name;) {
      entry.is_folder = kind == "d";
      entries.push_back(entry);
    }
    return entries;
  }

  static std::vector<Entry> all_names(const std::string& folder) {
    std::vector<Entry> entries;
    if (!fs::exists(folder)) return entries;
    for (const auto& entry : fs::directory_iterator(folder)) {
      entries.push_back({.inode = inode_of(entry.path().string()),
                         .is_folder = entry.is_directory(),
                         .name = entry.path().filename().string()});
    }
    return entries;
  }

  // Bytes that were not flushed are lost.
  void restore_folder(Names names, const std::string& folder, std::uint64_t inode,
                      const std::string& to) const {
    fs::create_directory(to);
    const auto entries = names == Names::kAll ? all_names(folder) : flushed_names(inode);
    for (const Entry& entry : entries) {
      const std::string target = to + "/" + entry.name;
      if (entry.is_folder) {
        restore_folder(names, folder + "/" + entry.name, entry.inode, target);
      } else {
        train_test::write_bytes(target, read_bytes(mirrored("file", entry.inode)));
      }
    }
  }

  std::string mirror_;
  std::string disk_;
};

/// A run in which the power goes at a call; then what is left is looked at, and gone on from.
void expect_power_cut_is_survived(const Runner& runner, long at, bool resumes,
                                  const std::string& expected) {
  runner.clear();
  const std::string mirror = runner.path("mirror");
  fs::remove_all(mirror);
  fs::create_directory(mirror);
  const Outcome outcome =
      runner.run({"ONNXGRAD_FAULT_AT=" + std::to_string(at), "ONNXGRAD_FAULT_KIND=kill",
                  "ONNXGRAD_FAULT_MIRROR=" + mirror});
  const PowerCut cut(mirror, runner.disk());
  const std::string left = runner.path("left");
  for (const auto names : {PowerCut::Names::kFlushed, PowerCut::Names::kAll}) {
    const std::string what = "power cut at call " + std::to_string(at) +
                             (names == PowerCut::Names::kAll ? ", names were written" : "");
    cut.restore(names, left);
    const std::int64_t newest = expect_all_whole(left + "/run", what);
    expect_nothing_lost(outcome, newest, what);
    if (!resumes) continue;
    const Outcome resumed = runner.run({}, {}, left + "/run");
    EXPECT_EQ(resumed.status, 0) << what << ": " << resumed.errors;
    EXPECT_EQ(runner.result(), expected) << what;
  }
}

TEST(CheckpointFaults, APowerCutLeavesWhatWasFlushed) {
  const Runner runner(2);
  ASSERT_EQ(runner.run({}, {}, "-").status, 0);
  const std::string expected = runner.result();
  runner.clear();
  ASSERT_EQ(runner.run({"ONNXGRAD_FAULT_AT=0"}).status, 0);
  const long calls = std::stol(runner.log().substr(6));
  const long resumed_every = is_long() ? 1 : 7;
  for (long at = 1; at <= calls + 1; ++at) {  // the last one comes after all of them
    expect_power_cut_is_survived(runner, at, at % resumed_every == 0, expected);
    ASSERT_FALSE(HasFailure());
  }
  std::printf("  %ld power cuts\n", calls + 1);
}

// Otherwise the test above would prove nothing.
TEST(CheckpointFaults, ADiskThatLiesLosesCheckpoints) {
  const Runner runner(2);
  const std::string mirror = runner.path("mirror");
  fs::create_directory(mirror);
  const Outcome outcome = runner.run(
      {"ONNXGRAD_FAULT_AT=0", "ONNXGRAD_FAULT_LIES=1", "ONNXGRAD_FAULT_MIRROR=" + mirror});
  ASSERT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_FALSE(outcome.lines("saved ").empty());
  const std::string left = runner.path("left");
  const PowerCut cut(mirror, runner.disk());
  cut.restore(PowerCut::Names::kFlushed, left);
  EXPECT_THAT(names_in(left + "/run"), IsEmpty());
  cut.restore(PowerCut::Names::kAll, left);
  for (const std::string& name : names_in(left + "/run")) {
    if (!checkpoint_step(name)) continue;
    EXPECT_THROW((void)read_checkpoint(left + "/run/" + name), CheckpointError) << name;
  }
}

}  // namespace onnxgrad::train::checkpoint_faults_test
