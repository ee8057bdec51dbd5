#include "onnxgrad/version.h"

#include <gtest/gtest.h>

namespace onnxgrad::version_test {

TEST(Version, LibraryAndHeadersAgree) { EXPECT_STREQ(version(), kVersion); }

}  // namespace onnxgrad::version_test
