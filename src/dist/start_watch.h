#ifndef ONNXGRAD_DIST_START_WATCH_H_
#define ONNXGRAD_DIST_START_WATCH_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "dist/job.h"

namespace onnxgrad::dist {

/// Watches over a start that cannot be interrupted: MPI_Init waits for all ranks for as long as it
/// takes, also for one that was never started, hangs or has ended. During its lifetime, the others
/// on its host can see this rank by a socket without a file. After `timeout_s` it prints which
/// ranks are missing, as far as this host shows, and ends the process with exit code 7, which ends
/// the job.
class StartWatch {
 public:
  StartWatch(const Job& job, std::string job_name, double timeout_s);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Message such as "rank 2 of 4 has not arrived on host a", "of 8 ranks, 0 and 1 have arrived on
  /// host a".
  std::string who_is_missing() const;

 private:
  std::string address_of(int rank) const;
  bool has_arrived(int rank) const;
  void watch(double timeout_s);

  Job job_;
  std::string job_name_;
  int mark_ = -1;  ///< the socket by which others see this rank
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

/// A name that all ranks of a job on a host compute alike, and ranks of another job do not.
std::string name_of_job(const Environment& environment);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_START_WATCH_H_
