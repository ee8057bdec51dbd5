#include "dist/tcp.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/communicator.h"
#include "dist/socket.h"
#include "dist/testing/ordered_values.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace tcp_test {

int free_port() { return Socket::listen("localhost", 0).port(); }

// The message of each rank's error; the ranks are threads with sockets between them.
std::vector<std::string> run(int size, const std::function<void(Communicator&)>& worker,
                             double timeout_s = 30, std::vector<std::string> tokens = {}) {
  const int port = free_port();
  tokens.resize(static_cast<std::size_t>(size), "a token");
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto k = static_cast<std::size_t>(rank);
      try {
        const Job job{.rank = rank,
                      .size = size,
                      .address = fmt::format("localhost:{}", port),
                      .token = tokens[k]};
        Communicator workers(connect_tcp(job, timeout_s), {.timeout_s = timeout_s});
        worker(workers);
      } catch (const DeviceError& error) {
        errors[k] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Tcp, SumsHaveTheBitsOfEveryOtherTransport) {
  for (const int size : {2, 3, 5}) {
    const auto errors = run(size, [&](Communicator& workers) {
      for (const std::int64_t count : {1, 1000, 3'000'000}) {
        std::vector<float> values = dist_test::values_of<float>(workers.rank(), count);
        workers.all_reduce(count, Element::kFloat32)->run(values.data(), values.data());
        for (std::int64_t i = 0; i < count; i += 1 + count / 1000) {
          const float sum =
              dist_test::ordered_sum<float>(size, size, i, dist_test::element_of<float>);
          ASSERT_TRUE(dist_test::same_bits(values[static_cast<std::size_t>(i)], sum)) << i;
        }
      }
      EXPECT_EQ(workers.broadcast_text(std::to_string(workers.rank()), size - 1),
                std::to_string(size - 1));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Tcp, MessagesWithDifferentTagsMayBeExpectedInAnyOrder) {
  const auto errors = run(2, [](Communicator& workers) {
    const int other = 1 - workers.rank();
    std::vector<std::unique_ptr<Collective>> sends;
    const std::vector<std::int32_t> mine{10, 11, 12};
    for (int tag = 0; tag < 3; ++tag) {
      sends.push_back(workers.send(4, other, tag));
      sends.back()->start(&mine[static_cast<std::size_t>(tag)], nullptr);
    }
    for (const int tag : {2, 0, 1}) {
      std::int32_t received = 0;
      workers.receive(4, other, tag)->run(nullptr, &received);
      EXPECT_EQ(received, 10 + tag);
    }
    for (const auto& send : sends) send->wait();
  });
  EXPECT_EQ(errors[0] + errors[1], "");
}

TEST(Tcp, ARankThatEndsIsNamedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run(3, [](Communicator& workers) {
    if (workers.rank() == 1) return;
    std::vector<double> values(1000, 1);
    workers.all_reduce_now(std::span(values));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(errors[rank], testing::HasSubstr("the connection is lost"));
  }
  EXPECT_THAT(errors[0] + errors[2], testing::HasSubstr("with rank 1 on host "));
}

TEST(Tcp, RanksThatDoNotComeAreNamed) {
  const Job job{.rank = 0, .size = 3, .address = fmt::format("localhost:{}", free_port())};
  try {
    connect_tcp(job, 0.3);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("ranks 1, 2 of 3 did not connect"));
  }
}

TEST(Tcp, ARankOfAnotherJobIsNotLetIn) {
  const auto errors = run(2, [](Communicator&) {}, 1, {"a token", "another token"});
  EXPECT_THAT(errors[0], testing::HasSubstr("rank 1 of 2 did not connect"));
  EXPECT_THAT(errors[1], testing::HasSubstr("the connection to rank 0 broke"));
}

TEST(Tcp, StrangersAtThePortDoNoHarm) {
  const int port = free_port();
  std::thread stranger([port] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const Socket socket = Socket::connect(fmt::format("localhost:{}", port), deadline);
    const std::string request(200, 'G');
    socket.write_all(std::as_bytes(std::span(request)), deadline);
  });
  const auto connect = [port](int rank) {
    const Job job{.rank = rank, .size = 2, .address = fmt::format("localhost:{}", port)};
    return connect_tcp(job, 20);
  };
  std::unique_ptr<Transport> first;
  std::thread listener([&] { first = connect(0); });
  stranger.join();
  const auto second = connect(1);
  listener.join();
  EXPECT_EQ(first->size(), 2);
}

// The addresses at which sockets of this process's network listen at `port`, as /proc writes them.
std::vector<std::string> listening_addresses(int port) {
  std::vector<std::string> found;
  const std::string ending = fmt::format(":{:04X}", port);
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    for (std::string number, local, remote, state, line; file >> number >> local >> remote >> state;
         std::getline(file, line)) {
      if (state == "0A" && local.ends_with(ending)) found.push_back(local);
    }
  }
  return found;
}

TEST(Tcp, ListensOnlyWhereItWasAskedTo) {
  for (const char* host : {"localhost", "127.0.0.1"}) {
    const Socket listener = Socket::listen(host, 0);
    const std::vector<std::string> addresses = listening_addresses(listener.port());
    ASSERT_FALSE(addresses.empty());
    for (const std::string& address : addresses) {
      EXPECT_THAT(address,
                  testing::AnyOf(testing::StartsWith("0100007F:"),
                                 testing::StartsWith("00000000000000000000000001000000:")));
    }
  }
  const Socket everywhere = Socket::listen("", 0);
  EXPECT_THAT(listening_addresses(everywhere.port()), testing::Not(testing::IsEmpty()));
}

TEST(Tcp, SilentStrangersDoNotHoldUpTheStart) {
  const int port = free_port();
  const auto connect = [port](int rank) {
    const Job job{
        .rank = rank, .size = 2, .address = fmt::format("127.0.0.1:{}", port), .token = "t"};
    return connect_tcp(job, 20);
  };
  std::unique_ptr<Transport> first;
  std::thread listener([&] { first = connect(0); });
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Socket> strangers;
  for (int i = 0; i < 120; ++i) {
    strangers.push_back(
        Socket::connect(fmt::format("127.0.0.1:{}", port), begin + std::chrono::seconds(10)));
  }
  const std::string half_a_hello = "onnxgrd1";
  strangers[0].write_all(std::as_bytes(std::span(half_a_hello)), begin + std::chrono::seconds(10));
  const auto second = connect(1);
  listener.join();
  EXPECT_EQ(first->size(), 2);
}

TEST(Tcp, ARankDoesNotTakeOrdersFromAStrangerAtTheAddressOfRankZero) {
  const Socket listener = Socket::listen("127.0.0.1", 0);
  std::string error;
  std::thread rank([&] {
    try {
      const Job job{.rank = 1,
                    .size = 2,
                    .address = fmt::format("127.0.0.1:{}", listener.port()),
                    .token = "t"};
      connect_tcp(job, 10);
    } catch (const DeviceError& failure) {
      error = failure.what();
    }
  });
  std::optional<Socket> guest;
  while (!guest) guest = listener.accept();
  const std::string answer(4096, '\0');
  guest->write_all(std::as_bytes(std::span(answer)),
                   std::chrono::steady_clock::now() + std::chrono::seconds(5));
  rank.join();
  EXPECT_THAT(error, testing::HasSubstr("the connection to rank 0 broke"));
}

TEST(Tcp, AddressesHaveAHostAndAPort) {
  EXPECT_EQ(split_address("[::1]:80"), std::pair(std::string("::1"), std::string("80")));
  EXPECT_THROW(split_address("localhost"), DeviceError);
}

}  // namespace tcp_test
}  // namespace onnxgrad::dist
