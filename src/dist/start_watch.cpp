#include "dist/start_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "dist/host_name.h"

namespace onnxgrad::dist {
namespace {

constexpr int kExitDevice = 7;  // exit status of a DeviceError on the command line

struct Address {
  sockaddr_un address = {};
  socklen_t bytes = 0;

  // In the abstract name space: it is gone with its process, however that ends.
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t length = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// MPICH's daemon on this host, of which all ranks here descend, also through scripts; else the
// parent.
int launcher_process() {
  int process = getppid();
  for (int generation = 0; generation < 6 && process > 1; ++generation) {
    // "pid (name) state parent ...", and the name may contain anything.
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');
    if (name_end == std::string::npos || name_end + 4 > line.size()) break;
    if (line.substr(0, name_end).find("hydra") != std::string::npos) return process;
    process = static_cast<int>(std::strtol(line.c_str() + name_end + 4, nullptr, 10));
  }
  return getppid();
}

}  // namespace

std::string name_of_job(const Environment& environment) {
  std::string name;
  for (const char* variable : {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    name += environment(variable).value_or("") + ".";
  }
  return name == "..." ? fmt::format("process {}", launcher_process()) : name;
}

StartWatch::StartWatch(const Job& job, std::string job_name, double timeout_s)
    : job_(job), job_name_(std::move(job_name)) {
  mark_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const Address own(address_of(job_.rank));
  if (mark_ >= 0 && ::bind(mark_, own.get(), own.bytes) != 0) {
    ::close(mark_);
    mark_ = -1;
  }
  thread_ = std::thread([this, timeout_s] { watch(timeout_s); });
}

StartWatch::~StartWatch() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (mark_ >= 0) ::close(mark_);
}

std::string StartWatch::address_of(int rank) const {
  return fmt::format("onnxgrad {} {} {}", getuid(), rank, job_name_);
}

bool StartWatch::has_arrived(int rank) const {
  if (rank == job_.rank) return true;
  const int probe = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const Address other(address_of(rank));
  const bool is_there = ::connect(probe, other.get(), other.bytes) == 0;
  ::close(probe);
  return is_there;
}

std::string StartWatch::who_is_missing() const {
  std::vector<int> here;
  std::vector<int> missing;
  for (int rank = 0; rank < job_.size; ++rank) (has_arrived(rank) ? here : missing).push_back(rank);
  if (job_.local_size == job_.size && !missing.empty()) {
    return fmt::format("{} {} of {} {} not arrived on host {}",
                       missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "), job_.size,
                       missing.size() == 1 ? "has" : "have", host_name());
  }
  std::string text =
      fmt::format("of {} ranks, {} {} arrived on host {}", job_.size, fmt::join(here, ", "),
                  here.size() == 1 ? "has" : "have", host_name());
  if (job_.local_size > std::ssize(here)) {
    text += fmt::format(", where {} were to start", job_.local_size);
  } else if (std::ssize(here) < job_.size) {
    text += "; the others are on hosts that cannot be seen from here, or missing";
  }
  return text;
}

void StartWatch::watch(double timeout_s) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return is_over_; })) {
    return;
  }
  fmt::print(stderr,
             "onnxgrad: rank {} on host {}: MPI_Init has not ended within {:g} s: {}\n"
             "  Look at the output of the missing ranks and of {}.\n",
             job_.rank, host_name(), timeout_s, who_is_missing(), launcher_name(job_.launcher));
  std::fflush(nullptr);
  std::_Exit(kExitDevice);
}

}  // namespace onnxgrad::dist
