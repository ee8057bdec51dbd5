#include "dist/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "onnxgrad/option_error.h"

namespace onnxgrad::dist {
namespace {

int read_number(const std::string& name, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    throw OptionError({.what = fmt::format("environment variable {}='{}' is no number", name, text),
                       .hint = "Launchers set it. Unset it if this process belongs to none."});
  }
  return value;
}

struct Names {
  Job::Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// In the order in which they count: mpirun within an allocation of SLURM is Open MPI's.
constexpr Names kLaunchers[] = {
    {Job::Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Job::Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Job::Launcher::kPmix, "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
    {Job::Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
    {Job::Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

std::string torchrun_address(const Environment& environment) {
  const auto host = environment("MASTER_ADDR");
  const auto port = environment("MASTER_PORT");
  if (!host || !port) return "";
  // torchrun's own agent listens at the port of the script's rank 0; the next one is ours.
  const bool is_taken = environment("TORCHELASTIC_RUN_ID").has_value();
  return fmt::format("{}:{}", *host, read_number("MASTER_PORT", *port) + (is_taken ? 1 : 0));
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): only reads
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Job find_job(const Environment& environment) {
  Job job;
  for (const Names& names : kLaunchers) {
    const auto rank = environment(names.rank);
    const auto size = environment(names.size);
    if (!rank || !size) continue;
    job.launcher = names.launcher;
    job.rank = read_number(names.rank, *rank);
    job.size = read_number(names.size, *size);
    if (job.rank >= job.size) {
      throw OptionError(
          {.what = fmt::format("environment variables {}={} and {}={}: no such rank", names.rank,
                               job.rank, names.size, job.size),
           .hint = "Launchers set them. Unset them if this process belongs to none."});
    }
    if (const auto local = environment(names.local_rank)) {
      job.local_rank = read_number(names.local_rank, *local);
    }
    if (const auto local = environment(names.local_size)) {
      job.local_size = read_number(names.local_size, *local);
    }
    break;
  }
  if (job.launcher == Job::Launcher::kTorchrun) job.address = torchrun_address(environment);
  job.token =
      environment("ONNXGRAD_JOB_TOKEN").value_or(environment("TORCHELASTIC_RUN_ID").value_or(""));
  for (const char* name : {"OMPI_LIBDIR_LOC"}) {  // Open MPI 5
    if (const auto folder = environment(name)) job.library_folders.push_back(*folder);
  }
  for (const char* name : {"OPAL_PREFIX", "PMIX_PREFIX"}) {
    if (const auto prefix = environment(name)) job.library_folders.push_back(*prefix + "/lib");
  }
  return job;
}

std::string_view launcher_name(Job::Launcher launcher) {
  switch (launcher) {
    case Job::Launcher::kOpenMpi:
      return "mpirun of Open MPI";
    case Job::Launcher::kMpich:
      return "mpirun of MPICH";
    case Job::Launcher::kPmix:
      return "srun with PMIx";
    case Job::Launcher::kSlurm:
      return "srun";
    case Job::Launcher::kTorchrun:
      return "torchrun";
    case Job::Launcher::kNone:
      break;
  }
  return "no launcher";
}

std::vector<std::string> folders_of_ancestors() {
  std::vector<std::string> folders;
  auto process = static_cast<long>(getppid());
  for (int generation = 0; generation < 6 && process > 1; ++generation) {
    std::error_code failed;
    const std::string entry = fmt::format("/proc/{}", process);
    const auto program = std::filesystem::read_symlink(entry + "/exe", failed);
    if (!failed) {
      folders.push_back((program.parent_path().parent_path() / "lib").lexically_normal().string());
    }
    // "pid (name) state parent ...", and the name may contain anything.
    std::ifstream file(entry + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');
    if (name_end == std::string::npos || name_end + 4 > line.size()) break;
    process = std::strtol(line.c_str() + name_end + 4, nullptr, 10);
  }
  return folders;
}

}  // namespace onnxgrad::dist
