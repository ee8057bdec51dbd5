#ifndef ONNXGRAD_DIST_CONNECT_H_
#define ONNXGRAD_DIST_CONNECT_H_

#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/job.h"

namespace onnxgrad::dist {

struct ConnectOptions {
  /// "auto": the transport that the launcher provides; "mpi"; "tcp": sockets, between the ranks of
  /// any launcher that says where rank 0 is (MASTER_ADDR, MASTER_PORT); "off": one worker, whatever
  /// started it.
  std::string transport = "auto";
  double timeout_s = 600;
  /// Folders in which MPI libraries are looked for after all others: those of Python wheels.
  std::vector<std::string> library_folders = {};
};

/// Connects to the ranks of the job that this process belongs to; a single worker without a job.
/// All calls of a process give the same communicator. Throws: OptionError (an unknown transport,
/// variables that are no numbers), DeviceError (several ranks and no transport between them; ranks
/// missing).
std::shared_ptr<Communicator> connect(const ConnectOptions& options = {});

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_CONNECT_H_
