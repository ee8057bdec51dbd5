#include "dist/connect.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "dist/mpi.h"
#include "dist/tcp.h"
#include "onnxgrad/error.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad::dist {
namespace {

std::unique_ptr<Transport> connect_job(const Job& job, const ConnectOptions& options) {
  const bool is_torchrun = job.launcher == Job::Launcher::kTorchrun;
  if (options.transport == "mpi" || (options.transport == "auto" && !is_torchrun)) {
    return connect_mpi(job, options.library_folders, options.timeout_s);
  }
  if (job.address.empty()) {
    throw DeviceError(
        {.what = fmt::format("{} started {} ranks, but nothing says where rank 0 is",
                             launcher_name(job.launcher), job.size),
         .hint = "Set MASTER_ADDR and MASTER_PORT as torchrun does, or start with mpirun."});
  }
  // "none" is what torchrun calls a job without an id.
  if (job.rank == 0 && (job.token.empty() || job.token == "none")) {
    fmt::print(
        stderr,
        "onnxgrad: the ranks have no secret in common: whoever reaches {} may join as one of "
        "them. Set ONNXGRAD_JOB_TOKEN to the same random text on all ranks.\n",
        job.address);
  }
  return connect_tcp(job, options.timeout_s);
}

}  // namespace

std::shared_ptr<Communicator> connect(const ConnectOptions& options) {
  const std::string& wanted = options.transport;
  if (wanted != "auto" && wanted != "mpi" && wanted != "tcp" && wanted != "off") {
    throw OptionError({.what = fmt::format("dist='{}' is unknown", wanted),
                       .hint = "Choose 'auto', 'mpi', 'tcp' or 'off'."});
  }
  if (wanted == "off") return make_self();
  const Job job = find_job(process_environment());
  if (job.size == 1) return make_self();
  // One per process, as the launcher means it; never destroyed, since what ends the job at exit
  // may run before or after destructors.
  static std::mutex mutex;
  static auto& of_process = *new std::shared_ptr<Communicator>;
  const std::scoped_lock lock(mutex);
  if (!of_process) {
    of_process = std::make_shared<Communicator>(
        connect_job(job, options), CommunicatorOptions{.timeout_s = options.timeout_s});
  }
  return of_process;
}

}  // namespace onnxgrad::dist
