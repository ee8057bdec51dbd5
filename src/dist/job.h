#ifndef ONNXGRAD_DIST_JOB_H_
#define ONNXGRAD_DIST_JOB_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace onnxgrad::dist {

/// The job of this process, as environment variables describe it.
struct Job {
  enum class Launcher { kNone, kOpenMpi, kMpich, kPmix, kSlurm, kTorchrun };
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = -1;       ///< -1: unknown
  int local_size = -1;       ///< -1: unknown
  std::string address = {};  ///< address of rank 0 for TCP: "host:port"
  std::string token = {};    ///< secret that all ranks of a job share
  /// Folders with the libraries of the launcher itself.
  std::vector<std::string> library_folders = {};
};

/// Value of an environment variable, or nullopt.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

/// Finds the job that this process is a rank of: of Open MPI (OMPI_COMM_WORLD_*), MPICH and other
/// launchers with PMI (PMI_*, MPI_LOCAL*), PMIx (PMIX_RANK; its size comes from SLURM), SLURM
/// (those of a step: SLURM_PROCID, SLURM_STEP_NUM_TASKS), torchrun (RANK, WORLD_SIZE, MASTER_ADDR).
/// Throws: OptionError (a variable that is no number, a rank outside of the job).
Job find_job(const Environment& environment);

/// Name of a launcher for messages: "mpirun of Open MPI".
std::string_view launcher_name(Job::Launcher launcher);

/// Folders bin/../lib of the ancestors of this process, one of which is the launcher's daemon.
std::vector<std::string> folders_of_ancestors();

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_JOB_H_
