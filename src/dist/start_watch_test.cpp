#include "dist/start_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "dist/host_name.h"

namespace onnxgrad::dist::start_watch_test {

Job job_of(int rank, int size, int local_size) {
  Job job;
  job.launcher = Job::Launcher::kOpenMpi;
  job.rank = rank;
  job.size = size;
  job.local_size = local_size;
  return job;
}

// A job name that only this process uses.
std::string job_name() { return "test " + std::to_string(getpid()); }

TEST(StartWatch, NamesTheRanksThatAreNotHere) {
  const StartWatch first(job_of(0, 4, 4), job_name(), 60);
  EXPECT_EQ(first.who_is_missing(), "ranks 1, 2, 3 of 4 have not arrived on host " + host_name());
  const StartWatch third(job_of(2, 4, 4), job_name(), 60);
  EXPECT_EQ(first.who_is_missing(), "ranks 1, 3 of 4 have not arrived on host " + host_name());
  {
    const StartWatch fourth(job_of(3, 4, 4), job_name(), 60);
    EXPECT_EQ(third.who_is_missing(), "rank 1 of 4 has not arrived on host " + host_name());
  }
  EXPECT_EQ(third.who_is_missing(), "ranks 1, 3 of 4 have not arrived on host " + host_name());
  const StartWatch stranger(job_of(1, 4, 4), job_name() + "2", 60);
  EXPECT_EQ(third.who_is_missing(), "ranks 1, 3 of 4 have not arrived on host " + host_name());
}

TEST(StartWatch, SaysWhatItCanSeeOfSeveralHosts) {
  const StartWatch first(job_of(0, 8, 2), job_name(), 60);
  EXPECT_EQ(first.who_is_missing(),
            "of 8 ranks, 0 has arrived on host " + host_name() + ", where 2 were to start");
  const StartWatch second(job_of(1, 8, 2), job_name(), 60);
  EXPECT_EQ(first.who_is_missing(),
            "of 8 ranks, 0, 1 have arrived on host " + host_name() +
                "; the others are on hosts that cannot be seen from here, or missing");
}

TEST(StartWatchDeathTest, EndsTheProcessWhenItsTimeIsOver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StartWatch watch(job_of(0, 2, 2), job_name(), 0.05);
        std::this_thread::sleep_for(std::chrono::seconds(30));
      },
      testing::ExitedWithCode(7), "MPI_Init has not ended within 0.05 s: rank 1 of 2 has not");
}

}  // namespace onnxgrad::dist::start_watch_test
