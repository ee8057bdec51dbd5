#ifndef ONNXGRAD_DISTRIBUTED_H_
#define ONNXGRAD_DISTRIBUTED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

namespace dist {
class Communicator;  ///< the connection to the other workers
}

struct ConnectOptions {
  /// "auto": the transport that the launcher provides; "mpi"; "tcp": sockets, with the address of
  /// rank 0 in MASTER_ADDR and MASTER_PORT; "off": one worker, whatever started it.
  std::string transport = "auto";
  /// Longest wait without any message; then an error names the missing ranks.
  double timeout_s = 600;
  /// Folders in which MPI libraries are looked for after all others.
  std::vector<std::string> library_folders = {};
};

/// Connects this process with the other ranks of its job, which call it too. Jobs are those of
/// mpirun (Open MPI, MPICH), srun and torchrun; without one there is one worker. All calls of a
/// process give the same connection. MPI is loaded when it is needed; it is no dependency. Throws:
/// OptionError (an unknown transport), DeviceError (several ranks and no transport between them;
/// ranks that do not come).
std::shared_ptr<dist::Communicator> connect_workers(const ConnectOptions& options = {});

/// The workers of a job, as this process sees them.
struct WorkersInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< rank among those on the same host
  int local_size = 1;
  std::vector<std::string> hosts = {};  ///< one name for each rank
  std::string transport = {};           ///< "self", "TCP", "Open MPI v4.1.4"
  /// Threads for this rank: its processors of the affinity mask and the control group's quota,
  /// divided among the ranks that may use them; at least 1.
  int threads = 1;
};
WorkersInfo workers_info(const dist::Communicator& workers);

/// Traffic of this process since it was connected.
struct Traffic {
  std::int64_t bytes_sent = 0;  ///< bytes sent to other workers
  double seconds_waited = 0;    ///< time waited for their messages
};
Traffic traffic_of(const dist::Communicator& workers);

/// Waits until all workers call it. Throws: DeviceError.
void wait_for_all(dist::Communicator& workers);
/// Returns `text` of the worker `root` on all workers. Throws: DeviceError.
std::string broadcast_text(dist::Communicator& workers, const std::string& text, int root = 0);
/// The texts of all workers, in order of ranks. Throws: DeviceError.
std::vector<std::string> gather_texts(dist::Communicator& workers, const std::string& mine);

/// Ends the job on all ranks, with this exit code; does not return if there are others.
void stop_workers(dist::Communicator& workers, int exit_code, std::string_view reason);

}  // namespace onnxgrad

#endif  // ONNXGRAD_DISTRIBUTED_H_
