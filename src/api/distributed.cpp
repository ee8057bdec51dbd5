#include "onnxgrad/distributed.h"

#include "device/thread_count.h"
#include "dist/connect.h"

namespace onnxgrad {

std::shared_ptr<dist::Communicator> connect_workers(const ConnectOptions& options) {
  return dist::connect({.transport = options.transport,
                        .timeout_s = options.timeout_s,
                        .library_folders = options.library_folders});
}

WorkersInfo workers_info(const dist::Communicator& workers) {
  return {.rank = workers.rank(),
          .size = workers.size(),
          .local_rank = workers.local_rank(),
          .local_size = workers.local_size(),
          .hosts = workers.hosts(),
          .transport = workers.transport_name(),
          .threads = device::available_threads(
              {.processors = workers.local_processors(), .processes = workers.local_size()})};
}

Traffic traffic_of(const dist::Communicator& workers) {
  return {.bytes_sent = workers.bytes_sent(), .seconds_waited = workers.seconds_waited()};
}

void wait_for_all(dist::Communicator& workers) { workers.barrier_now(); }

std::string broadcast_text(dist::Communicator& workers, const std::string& text, int root) {
  return workers.broadcast_text(text, root);
}

std::vector<std::string> gather_texts(dist::Communicator& workers, const std::string& mine) {
  return workers.all_gather_texts(mine);
}

void stop_workers(dist::Communicator& workers, int exit_code, std::string_view reason) {
  workers.abort(exit_code, reason);
}

}  // namespace onnxgrad
