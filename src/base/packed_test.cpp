#include "base/packed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace onnxgrad::base::packed_test {
namespace {

TEST(Packed, GivesBackWhatWasPacked) {
  const std::vector<Tensor> elements = {
      Tensor::from(std::vector<float>{1, 2, 3}, Dims{3}), Tensor::scalar(std::int64_t{-7}),
      Tensor::empty(DataType::kFloat64, Dims{0, 4}), Tensor::scalar(true)};
  const auto unpacked = unpack(pack(elements));
  ASSERT_TRUE(unpacked.has_value());
  ASSERT_EQ(unpacked->size(), elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    EXPECT_EQ((*unpacked)[i].dims(), elements[i].dims());
    EXPECT_TRUE((*unpacked)[i].equals(elements[i])) << i;
  }
}

TEST(Packed, TellsAnEmptySequenceFromAnEmptyOptional) {
  const auto sequence = unpack(pack({}));
  ASSERT_TRUE(sequence.has_value());
  EXPECT_TRUE(sequence->empty());
  EXPECT_FALSE(unpack(pack_nothing()).has_value());
}

TEST(Packed, HasFewLengths) {
  std::vector<Tensor> elements;
  std::int64_t last = 0;
  int lengths = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t bytes = pack(elements).size_bytes();
    lengths += bytes == last ? 0 : 1;
    last = bytes;
    elements.push_back(Tensor::from(std::vector<float>{1, 2}, Dims{2}));
  }
  EXPECT_LE(lengths, 6);
}

TEST(Packed, OtherBytesAreRefused) {
  const Tensor good = pack(std::vector{Tensor::from(std::vector<float>{1, 2, 3}, Dims{3})});
  EXPECT_THROW(unpack(Tensor::scalar(1.0F)), DataError);
  EXPECT_THROW(unpack(Tensor::zeros(DataType::kUint8, Dims{3})), DataError);
  // The number of elements, the first one's type, rank, and dimension.
  for (const std::size_t word : {0U, 1U, 2U, 3U}) {
    for (const std::int64_t wrong : {std::int64_t{-2}, std::int64_t{1} << 40}) {
      Tensor bad = good.clone();
      std::memcpy(bad.mutable_raw() + word * sizeof wrong, &wrong, sizeof wrong);
      EXPECT_THROW(unpack(bad), DataError) << word << " " << wrong;
    }
  }
  Tensor texts = pack(std::vector{Tensor::from_strings({"a"}, Dims{1})});
  const std::int64_t longer = std::int64_t{1} << 40;  // than the bytes that follow
  std::memcpy(texts.mutable_raw() + 4 * sizeof longer, &longer, sizeof longer);
  EXPECT_THROW(unpack(texts), DataError);
}

}  // namespace
}  // namespace onnxgrad::base::packed_test
