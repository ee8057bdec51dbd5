#ifndef ONNXGRAD_DIST_TESTING_THREADS_H_
#define ONNXGRAD_DIST_TESTING_THREADS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace onnxgrad::dist {

/// The ranks of a job as threads of one process, for tests, with faults on demand.
class ThreadGroup {
 public:
  /// `hosts`: host name of each rank; empty: all on "localhost".
  explicit ThreadGroup(int size, std::vector<std::string> hosts = {});
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const;
  /// The transport of one rank, for a Communicator that is made in its thread.
  std::unique_ptr<Transport> transport(int rank);
  /// Runs `worker` in one thread for each rank and waits for all of them. Rethrows the first
  /// exception of a rank; the others are stopped.
  void run(const std::function<void(Communicator&)>& worker, CommunicatorOptions options = {});

  /// Drops all later messages of `rank`, as if it hung or its host were cut off.
  void silence(int rank);
  /// Makes later messages to and from `rank` fail, as if its process had ended.
  void disconnect(int rank);

 private:
  struct Shared;
  class ThreadTransport;
  std::shared_ptr<Shared> shared_;
};

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_TESTING_THREADS_H_
