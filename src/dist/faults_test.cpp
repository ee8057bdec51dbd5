#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dist/testing/threads.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace faults_test {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr CommunicatorOptions kImpatient{.timeout_s = 1};

// The message of each rank's error; "" if it had none.
std::vector<std::string> errors_of(ThreadGroup& group,
                                   const std::function<void(Communicator&)>& worker) {
  std::vector<std::string> errors(static_cast<std::size_t>(group.size()));
  group.run(
      [&](Communicator& workers) {
        try {
          worker(workers);
        } catch (const DeviceError& error) {
          errors[static_cast<std::size_t>(workers.rank())] = error.what();
          EXPECT_TRUE(workers.is_broken());
        }
      },
      kImpatient);
  return errors;
}

TEST(Faults, ATimeoutNamesTheRankThatIsMissing) {
  ThreadGroup group(4, {"a", "a", "b", "b"});
  const auto errors = errors_of(group, [&](Communicator& workers) {
    if (workers.rank() == 2) return;  // never arrives
    std::vector<double> values(100, 1);
    workers.all_reduce_now(std::span(values));
  });
  EXPECT_EQ(errors[2], "");
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 2 on host b did not arrive"), HasSubstr("within 1 s"),
                      Not(HasSubstr("rank 1 on host a")), Not(HasSubstr("rank 3 on host b"))));
  }
}

TEST(Faults, TheRankToBlameIsNamedEvenIfAnotherOneIsWaitedFor) {
  // In a tree, rank 3 lacks the message of rank 1 or 2, who lack that of rank 0.
  ThreadGroup group(8);
  const auto errors = errors_of(group, [&](Communicator& workers) {
    if (workers.rank() != 0) workers.broadcast_text("weights", 0);
  });
  for (std::size_t rank = 1; rank < 8; ++rank) {
    EXPECT_THAT(errors[rank], HasSubstr(": rank 0 on host localhost did not arrive"));
  }
}

TEST(Faults, SilentRanksAreMissing) {
  ThreadGroup group(3);
  const auto errors = errors_of(group, [&](Communicator& workers) {
    if (workers.rank() == 1) group.silence(1);
    workers.barrier_now();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 on host localhost did not arrive"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 on host localhost did not arrive"));
}

TEST(Faults, RanksThatDoDifferentThingsAreReported) {
  ThreadGroup group(2);
  const auto errors = errors_of(group, [&](Communicator& workers) {
    if (workers.rank() == 0) workers.barrier_now();
    workers.all_gather({4, 4})->run(std::vector<int>(1).data(), std::vector<int>(2).data());
  });
  EXPECT_THAT(errors[0] + errors[1],
              AnyOf(HasSubstr("the ranks do not do the same"), HasSubstr("bytes arrived, not of")));
}

TEST(Faults, ALostConnectionNamesTheOtherRank) {
  ThreadGroup group(3, {"a", "b", "c"});
  const auto errors = errors_of(group, [&](Communicator& workers) {
    if (workers.rank() == 1) {
      group.disconnect(1);
      return;
    }
    std::vector<std::int64_t> values(100, 1);
    workers.all_reduce_now(std::span(values));
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("all_reduce with rank 1 on host b"), HasSubstr("connection")));
  }
}

TEST(Faults, AnAbortEndsTheWaitOfAllOthers) {
  ThreadGroup group(3, {"a", "b", "c"});
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> errors(3);
  group.run(
      [&](Communicator& workers) {
        if (workers.rank() == 2) {
          workers.abort(1, "the loss is NaN");
          return;
        }
        try {
          workers.barrier_now();
        } catch (const DeviceError& error) {
          errors[static_cast<std::size_t>(workers.rank())] = error.what();
        }
        // From then on the ranks are out of step.
        EXPECT_THROW(workers.barrier_now(), DeviceError);
      },
      {.timeout_s = 100});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 2 on host c stopped the job: the loss is NaN"));
  }
}

TEST(Faults, TheFirstExceptionOfARankReachesTheCaller) {
  ThreadGroup group(2);
  const auto run = [&] {
    group.run([](Communicator& workers) {
      if (workers.rank() == 1) throw DataError({.what = "row 7 is NaN", .hint = "Remove it."});
      workers.barrier_now();
    });
  };
  EXPECT_THROW(run(), DataError);
}

TEST(Faults, ASlowRankThatArrivesInTimeIsNoFault) {
  ThreadGroup group(2);
  const auto errors = errors_of(group, [&](Communicator& workers) {
    for (int i = 0; i < 2; ++i) {
      if (workers.rank() == i) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      workers.barrier_now();
    }
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Self, IsOneRankWithoutMessages) {
  const auto self = make_self();
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->local_size(), 1);
  std::vector<double> values{1.5, 2.5};
  self->all_reduce_now(std::span(values));
  EXPECT_EQ(values, (std::vector<double>{1.5, 2.5}));
  self->barrier_now();
}

}  // namespace faults_test
}  // namespace onnxgrad::dist
