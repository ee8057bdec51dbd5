#include "runtime/plan_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "runtime/evaluator.h"
#include "runtime/graph_file.h"
#include "runtime/testing/builtin_engine.h"

namespace onnxgrad::runtime::plan_cache_test {
namespace {

Program network() {
  const KernelEvaluator evaluator(builtin_engine());
  Program program;
  program.model =
      onnx_io::to_internal(onnx_io::load_text(R"(<ir_version: 10, opset_import: ["" : 21]>
        network (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6},
                                                   float[2] b = {7, 8}> {
          p = MatMul (x, w)
          s = Add (p, b)
          t = Softmax <axis = 1> (s)
          y = Mul (t, t)
        })"),
                           builtin_engine().ops, &evaluator);
  program.inputs = {{.is_state = false, .index = 0}};
  program.num_feeds = 1;
  return program;
}

const std::vector<FeedInfo> kFeeds = {
    {.desc = {.dtype = DataType::kFloat32, .dims = Dims{4, 3}}, .value = {}}};

class PlanCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!builtin_engine().device.is_host()) GTEST_SKIP() << "plans of the CPU are kept";
    folder_ = testing::TempDir() + "onnxgrad_plan_cache";
    std::filesystem::remove_all(folder_);
    options_.plan_cache = std::make_shared<PlanCache>(
        folder_, [this](const std::string& text) { warnings_.push_back(text); });
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What is stored for `program`, without key and checksum.
  std::string stored(const Program& program) {
    const CompiledRegion region = compile(program, kFeeds, builtin_engine(), options_);
    EXPECT_TRUE(region.is_compiled);
    const std::string key = PlanCache::key_of(program, kFeeds, builtin_engine(), options_, {});
    const auto file = base::ReadableFile::open(folder_ + "/" + key + ".plan");
    std::string bytes(static_cast<std::size_t>(file.size_bytes()), ' ');
    file.read(0, std::as_writable_bytes(std::span(bytes)));
    const std::size_t head = bytes.find(key) + key.size();
    return bytes.substr(head, bytes.size() - head - 32);
  }

  std::string folder_;
  ExecutorOptions options_;
  std::vector<std::string> warnings_;
};

TEST_F(PlanCacheTest, TheSecondPlanIsTheFirst) {
  const Program program = network();
  const CompiledRegion first = compile(program, kFeeds, builtin_engine(), options_);
  const CompiledRegion second = compile(program, kFeeds, builtin_engine(), options_);
  EXPECT_TRUE(first.is_compiled);
  EXPECT_FALSE(second.is_compiled);
  EXPECT_EQ(first.plan.to_text(), second.plan.to_text());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(PlanCacheTest, KeysDependOnAllThatAPlanDependsOn) {
  const Program program = network();
  const auto key = [&](const Program& of, const std::vector<FeedInfo>& feeds,
                       const ExecutorOptions& options, std::optional<std::int64_t> most = {}) {
    return PlanCache::key_of(of, feeds, builtin_engine(), options, most);
  };
  const std::string known = key(program, kFeeds, {});
  EXPECT_EQ(known, key(network(), kFeeds, {}));
  EXPECT_NE(known, key(program, kFeeds, {.threads = 2}));
  EXPECT_NE(known, key(program, kFeeds, {.fuse = false}));
  EXPECT_NE(known, key(program, kFeeds, {}, 100));
  std::vector<FeedInfo> longer = kFeeds;
  longer[0].desc.dims = Dims{5, 3};
  EXPECT_NE(known, key(program, longer, {}));
  Program other = network();
  other.model.graph->initializers[0]->initializer.mutable_raw()[1] ^= std::byte{1};
  EXPECT_NE(known, key(other, kFeeds, {}));
  other = network();
  other.model.graph->nodes.back()->op_type = "Add";
  EXPECT_NE(known, key(other, kFeeds, {}));
}

// Whatever the bytes, reading ends, and a graph that is returned has no fault.
TEST_F(PlanCacheTest, DamagedBytesAreRefusedOrSound) {
  const Program program = network();
  const std::string bytes = stored(program);
  ASSERT_TRUE(read_planned_graph(bytes, program).has_value());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(read_planned_graph(bytes.substr(0, size), program)) << size;
  }
  EXPECT_FALSE(read_planned_graph(bytes + "x", program));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto graph = read_planned_graph(damaged, program);
      if (graph) {
        EXPECT_EQ(ir::find_fault(*graph->model->graph), "");
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::runtime::plan_cache_test
