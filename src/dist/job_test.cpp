#include "dist/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "onnxgrad/option_error.h"

namespace onnxgrad::dist {
namespace job_test {

using Variables = std::map<std::string, std::string>;

Job job_in(const Variables& variables) {
  return find_job([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(FindJob, IsOneWorkerWithoutALauncher) {
  const Job job = job_in({{"HOME", "/root"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(job.launcher, Job::Launcher::kNone);
  EXPECT_EQ(job.size, 1);
}

struct Case {
  Job::Launcher launcher;
  Variables variables;
};

TEST(FindJob, KnowsTheVariablesOfEachLauncher) {
  using Launcher = Job::Launcher;
  const std::vector<Case> cases{
      {Launcher::kOpenMpi,
       {{"OMPI_COMM_WORLD_RANK", "2"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
        {"SLURM_PROCID", "0"},
        {"SLURM_STEP_NUM_TASKS", "1"}}},
      {Launcher::kMpich,
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}}},
      {Launcher::kPmix,
       {{"PMIX_RANK", "2"},
        {"SLURM_PROCID", "2"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_LOCALID", "1"}}},
      {Launcher::kSlurm,
       {{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}}},
      {Launcher::kTorchrun,
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"MASTER_ADDR", "node-1"},
        {"MASTER_PORT", "29500"}}},
  };
  for (const Case& one : cases) {
    const Job job = job_in(one.variables);
    EXPECT_EQ(job.launcher, one.launcher);
    EXPECT_EQ(job.rank, 2);
    EXPECT_EQ(job.size, 4);
    EXPECT_EQ(job.local_rank, 1);
  }
}

TEST(FindJob, ReadsTheAddressOfRankZero) {
  Variables variables{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node-1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(job_in(variables).address, "node-1:29500");
  variables["TORCHELASTIC_RUN_ID"] = "abc";  // the agent has the port itself
  EXPECT_EQ(job_in(variables).address, "node-1:29501");
  EXPECT_EQ(job_in(variables).token, "abc");
}

TEST(FindJob, RefusesWhatIsNoRank) {
  EXPECT_THROW(job_in({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}), OptionError);
  EXPECT_THROW(job_in({{"PMI_RANK", "-1"}, {"PMI_SIZE", "4"}}), OptionError);
  EXPECT_THROW(job_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "four"}}), OptionError);
}

TEST(FindJob, KnowsTheFoldersOfTheLauncher) {
  EXPECT_THAT(folders_of_ancestors(), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(
      job_in({{"OMPI_LIBDIR_LOC", "/opt/a/lib"}, {"OPAL_PREFIX", "/opt/b"}}).library_folders,
      testing::ElementsAre("/opt/a/lib", "/opt/b/lib"));
}

}  // namespace job_test
}  // namespace onnxgrad::dist
