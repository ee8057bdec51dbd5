#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::base::files_test {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    std::string pattern = (fs::temp_directory_path() / "onnxgrad-files-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    fs::create_directory(root_ / "model");
    write(root_ / "model" / "data.bin", "0123456789");
    write(root_ / "secret", "secret");
  }
  ~FilesTest() override { fs::remove_all(root_); }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ReadableFile open_beneath(const std::string& relative) const {
    return ReadableFile::open_beneath((root_ / "model").string(), relative);
  }
  std::size_t count_files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_ / "model"), {}));
  }

  fs::path root_;
};

TEST_F(FilesTest, ReadsByPosition) {
  const ReadableFile file = open_beneath("data.bin");
  EXPECT_EQ(file.size_bytes(), 10);
  std::string text(3, ' ');
  file.read(4, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "456");
  EXPECT_THROW(file.read(8, std::as_writable_bytes(std::span(text))), Error);
}

TEST_F(FilesTest, RefusesWhatIsNoRegularFileWithoutBlocking) {
  ASSERT_EQ(::mkfifo((root_ / "model" / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(ReadableFile::open((root_ / "model" / "pipe").string()), Error);
  EXPECT_THROW(open_beneath("pipe"), Error);
  EXPECT_THROW(ReadableFile::open("/dev/zero"), Error);
  EXPECT_THROW(ReadableFile::open(root_.string()), Error);
  EXPECT_THROW(ReadableFile::open((root_ / "absent").string()), Error);
}

TEST_F(FilesTest, StaysBeneathTheRoot) {
  fs::create_directory(root_ / "model" / "sub");
  write(root_ / "model" / "sub" / "more.bin", "more");
  EXPECT_EQ(open_beneath("sub/more.bin").size_bytes(), 4);
  EXPECT_EQ(open_beneath("./data.bin").size_bytes(), 10);
  fs::create_symlink("../secret", root_ / "model" / "link");
  fs::create_directory_symlink(root_, root_ / "model" / "up");
  const std::vector<std::string> hostile = {"../secret",
                                            "sub/../../secret",
                                            (root_ / "secret").string(),
                                            "link",
                                            "up/secret",
                                            "",
                                            ".",
                                            std::string("data.bin\0x", 10)};
  for (const std::string& path : hostile) EXPECT_THROW(open_beneath(path), Error) << path;
}

TEST_F(FilesTest, RefusesHardLinksToOtherFolders) {
  fs::create_hard_link(root_ / "secret", root_ / "model" / "hard");
  EXPECT_THROW(open_beneath("hard"), Error);
  // Both names in the model's folder: nothing from outside.
  fs::create_hard_link(root_ / "model" / "data.bin", root_ / "model" / "same.bin");
  EXPECT_EQ(open_beneath("same.bin").size_bytes(), 10);
}

TEST_F(FilesTest, RealFolderFollowsTheModelsOwnLink) {
  fs::create_symlink(root_ / "model" / "data.bin", root_ / "alias");
  EXPECT_EQ(real_folder((root_ / "alias").string()), fs::canonical(root_ / "model").string());
}

TEST_F(FilesTest, WritesWholeFiles) {
  const fs::path path = root_ / "model" / "out";
  write_atomically(path.string(), "first");
  EXPECT_EQ(read(path), "first");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  write_atomically(path.string(), "second");
  EXPECT_EQ(read(path), "second");
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0640u);
  EXPECT_THROW(write_atomically(path.string(), "third", Existing::kRefuse), Error);
  EXPECT_EQ(read(path), "second");
  write_atomically((root_ / "model" / "new").string(), "new", Existing::kRefuse);
  EXPECT_EQ(read(root_ / "model" / "new"), "new");
}

TEST_F(FilesTest, AFailedWriteLeavesNothingBehind) {
  const fs::path path = root_ / "model" / "data.bin";
  const std::size_t before = count_files();
  EXPECT_THROW(write_atomically(path.string(),
                                [](const ByteSink& sink) {
                                  sink("half");
                                  throw DataError({.what = "no more", .hint = "Stop."});
                                }),
               DataError);
  EXPECT_EQ(read(path), "0123456789");
  EXPECT_EQ(count_files(), before);
  EXPECT_THROW(write_atomically((root_ / "absent" / "x").string(), "x"), Error);
  EXPECT_THROW(write_atomically(root_.string(), "x"), Error);
  EXPECT_THROW(write_atomically("", "x"), Error);
}

TEST_F(FilesTest, WritesThroughALinkToItsTarget) {
  fs::create_symlink("data.bin", root_ / "model" / "link");
  write_atomically((root_ / "model" / "link").string(), "new");
  EXPECT_TRUE(fs::is_symlink(root_ / "model" / "link"));
  EXPECT_EQ(read(root_ / "model" / "data.bin"), "new");
}

}  // namespace
}  // namespace onnxgrad::base::files_test
