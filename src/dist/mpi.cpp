#include "dist/mpi.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "dist/host_name.h"
#include "dist/mpi_library.h"
#include "dist/start_watch.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

using Handle = MpiLibrary::Handle;

// MPI is one per process by its definition: initialised once, and never again once finalised.
struct MpiProcess {
  MpiLibrary mpi;
  Handle workers = nullptr;  // a copy of MPI_COMM_WORLD: its messages meet no others
  int rank = 0;
  int size = 1;
  bool finalizes = false;
};

std::string error_text(const MpiLibrary& mpi, int code) {
  std::array<char, 1024> text{};
  int length = 0;
  if (mpi.Error_string(code, text.data(), &length) != 0) return fmt::format("error {}", code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(const MpiLibrary& mpi, int code, const char* function) {
  if (code == 0) return;
  throw DeviceError({.what = fmt::format("{}: {}", function, error_text(mpi, code)),
                     .detail = "MPI library: " + mpi.path,
                     .hint = "Look at the output of the other ranks and of mpirun."});
}

std::string version_of(const MpiLibrary& mpi) {
  std::array<char, 8192> text{};
  int length = 0;
  mpi.Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  // "Open MPI v4.1.4, package: ...", "MPICH Version:      5.0.2\n..."
  std::istringstream words(version.substr(0, version.find_first_of(",\n")));
  std::string line;
  for (std::string word; words >> word;) {
    if (word != "Version:") line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

constexpr int kExitTag = kCollectiveTags + kMessageTags;

// Whether all ranks get here within `seconds`; a barrier by messages that nobody else sends.
bool all_end(const MpiProcess& process, double seconds) {
  const MpiLibrary& mpi = process.mpi;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int sequence = 0;
  for (int step = 1; step < process.size; step *= 2, ++sequence) {
    const char sent = 0;
    char received = 0;
    std::array<Handle, 2> requests{};
    const int to = (process.rank + step) % process.size;
    const int from = (process.rank - step + process.size) % process.size;
    const int tag = kExitTag + sequence;
    if (mpi.Irecv(&received, 1, mpi.byte, from, tag, process.workers, requests.data()) != 0 ||
        mpi.Isend(&sent, 1, mpi.byte, to, tag, process.workers, &requests[1]) != 0) {
      return false;
    }
    for (Handle& request : requests) {
      int is_done = 0;
      while (is_done == 0) {
        MpiLibrary::Status status;
        if (mpi.Test(&request, &is_done, &status) != 0) return false;
        if (std::chrono::steady_clock::now() > end) return false;
        if (is_done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  return true;
}

// MPI_Finalize waits for all ranks. If this one ended by an error, the others may wait for it in a
// collective: then the job ends here.
void finalize(int status, void* argument) {
  const auto& process = *static_cast<MpiProcess*>(argument);
  int is_finalized = 0;
  process.mpi.Finalized(&is_finalized);
  if (is_finalized != 0) return;
  constexpr double kPatience = 3;
  if (status != 0 && !all_end(process, kPatience)) {
    fmt::print(stderr, "onnxgrad: rank {} on host {} exited with code {}, and ends the job\n",
               process.rank, host_name(), status);
    std::fflush(stderr);
    process.mpi.Abort(process.workers, status);
  }
  process.mpi.Finalize();
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MpiProcess& process) : process_(process), mpi_(process.mpi) {}

  int rank() const override { return process_.rank; }
  int size() const override { return process_.size; }
  std::string name() const override { return version_of(mpi_); }
  std::string host() const override { return host_name(); }

  Request send(int peer, int tag, std::span<const std::byte> bytes) override {
    Handle handle = nullptr;
    check(mpi_,
          mpi_.Isend(bytes.data(), static_cast<int>(bytes.size()), mpi_.byte, peer, tag,
                     process_.workers, &handle),
          "MPI_Isend");
    return message(handle, -1);
  }

  Request receive(int peer, int tag, std::span<std::byte> bytes) override {
    Handle handle = nullptr;
    const auto count = static_cast<int>(bytes.size());
    check(mpi_, mpi_.Irecv(bytes.data(), count, mpi_.byte, peer, tag, process_.workers, &handle),
          "MPI_Irecv");
    return message(handle, count);
  }

  bool test(Request& request) override {
    if (request == nullptr) return true;
    auto& message = *static_cast<Message*>(request);
    int is_done = 0;
    MpiLibrary::Status status;
    check(mpi_, mpi_.Test(&message.handle, &is_done, &status), "MPI_Test");
    if (is_done == 0) return false;
    free_.push_back(&message);
    request = nullptr;
    int bytes = message.bytes;
    if (bytes >= 0) check(mpi_, mpi_.Get_count(&status, mpi_.byte, &bytes), "MPI_Get_count");
    if (bytes != message.bytes) {
      throw DeviceError(
          {.what = fmt::format("a message of {} bytes arrived, not of {}", bytes, message.bytes),
           .hint = "Run the same with the same options on all ranks."});
    }
    return true;
  }

  void cancel(Request& request) noexcept override {
    if (request == nullptr) return;
    auto& message = *static_cast<Message*>(request);
    mpi_.Cancel(&message.handle);
    mpi_.Request_free(&message.handle);
    free_.push_back(&message);
    request = nullptr;
  }

  void abort(int exit_code, std::string_view reason) noexcept override {
    fmt::print(stderr, "onnxgrad: rank {} on host {} ends the job: {}\n", rank(), host(), reason);
    std::fflush(nullptr);
    mpi_.Abort(process_.workers, exit_code);
    std::_Exit(exit_code);
  }

 private:
  struct Message {
    Handle handle = nullptr;
    int bytes = -1;  // expected; -1: it is sent
  };

  // From those that are done: in the steady state nothing is allocated.
  Request message(Handle handle, int bytes) {
    if (free_.empty()) {
      messages_.push_back(std::make_unique<Message>());
      free_.reserve(messages_.size());
      free_.push_back(messages_.back().get());
    }
    Message* const message = free_.back();
    free_.pop_back();
    *message = {handle, bytes};
    return message;
  }

  MpiProcess& process_;
  const MpiLibrary& mpi_;
  std::vector<std::unique_ptr<Message>> messages_;
  std::vector<Message*> free_;
};

MpiProcess start(const Job& job, const std::vector<std::string>& folders, double timeout_s) {
  MpiProcess process{.mpi = MpiLibrary::load(job, folders)};
  const MpiLibrary& mpi = process.mpi;
  int is_initialized = 0;
  mpi.Initialized(&is_initialized);
  if (is_initialized == 0) {
    int provided = 0;
    const StartWatch watch(job, name_of_job(process_environment()), timeout_s);
    check(mpi, mpi.Init_thread(nullptr, nullptr, mpi.thread_serialized, &provided),
          "MPI_Init_thread");
    process.finalizes = true;
  }
  check(mpi, mpi.Comm_dup(mpi.comm_world, &process.workers), "MPI_Comm_dup");
  check(mpi, mpi.Comm_set_errhandler(process.workers, mpi.errors_return),
        "MPI_Comm_set_errhandler");
  check(mpi, mpi.Comm_rank(process.workers, &process.rank), "MPI_Comm_rank");
  check(mpi, mpi.Comm_size(process.workers, &process.size), "MPI_Comm_size");
  if (job.size != process.size) {
    const std::string version = version_of(mpi);
    mpi.Finalize();
    throw DeviceError(
        {.what = fmt::format("{} started {} ranks, but MPI sees {}", launcher_name(job.launcher),
                             job.size, process.size),
         .detail = fmt::format("The library is {}, {}: that of another mpirun.", version, mpi.path),
         .hint = "Start with the mpirun of this library (srun: with --mpi=pmix), or set "
                 "LD_LIBRARY_PATH to the folder of the launcher's library."});
  }
  return process;
}

}  // namespace

std::unique_ptr<Transport> connect_mpi(const Job& job, const std::vector<std::string>& folders,
                                       double timeout_s) {
  static MpiProcess process = [&] {  // see MpiProcess
    return start(job, folders, timeout_s);
  }();
  static const bool ends_properly = [] {
    if (process.finalizes) on_exit(finalize, &process);
    return true;
  }();
  (void)ends_properly;
  return std::make_unique<MpiTransport>(process);
}

}  // namespace onnxgrad::dist
