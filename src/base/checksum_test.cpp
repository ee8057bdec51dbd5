#include "base/checksum.h"

#include <gtest/gtest.h>

namespace onnxgrad::base::checksum_test {
namespace {

// Values that the shared library libxxhash 0.8.1 gives.
TEST(Checksum, IsXxh3With128Bits) {
  EXPECT_EQ(checksum_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(checksum_hex("onnxgrad"), "e35cd42bf86888d476ae5b0f687bd847");
  std::string many;
  for (int i = 0; i < 100; ++i) many += "onnxgrad";
  EXPECT_EQ(checksum_hex(many), "487a07b8e98e66ccaa0a70b0b641383b");
}

TEST(Checksum, PiecesAreTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i % 23);
  Checksum pieces;
  for (std::size_t at = 0; at < text.size(); at += 7) {
    pieces.update(std::string_view(text).substr(at, 7));
  }
  EXPECT_EQ(pieces.hex(), checksum_hex(text));
  text[2500] ^= 1;
  EXPECT_NE(pieces.hex(), checksum_hex(text));
}

}  // namespace
}  // namespace onnxgrad::base::checksum_test
