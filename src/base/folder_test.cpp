#include "base/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base::folder_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string pattern = (fs::temp_directory_path() / "onnxgrad-folder-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~FolderTest() override { fs::remove_all(root_); }
  std::string path(const std::string& name) const { return (root_ / name).string(); }

  fs::path root_;
};

TEST_F(FolderTest, ListsRenamesAndRemovesFiles) {
  make_folders(path("a/b"));
  EXPECT_TRUE(fs::is_directory(root_ / "a" / "b"));
  write_atomically(path("two"), "2");
  write_atomically(path("one"), "1");
  EXPECT_THAT(list_files(root_.string()), ElementsAre("one", "two"));
  rename_file(path("two"), path("three"));
  remove_file(path("one"));
  EXPECT_THAT(list_files(root_.string()), ElementsAre("three"));
  EXPECT_THROW(remove_file(path("one")), Error);
  EXPECT_THROW(rename_file(path("one"), path("two")), Error);
  EXPECT_THROW(list_files(path("none")), Error);
  EXPECT_THROW(make_folders(path("three/b")), Error);
}

TEST_F(FolderTest, KnowsTheRoomThatIsLeft) {
  const auto room = available_bytes(root_.string());
  ASSERT_TRUE(room);
  EXPECT_EQ(*room > 0, fs::space(root_).available > 0);
  EXPECT_FALSE(available_bytes(path("none")));
}

TEST_F(FolderTest, LockIsHeldByOneAndNamesTheProcess) {
  const std::string lock = path("lock");
  {
    const FileLock first(lock);
    try {
      const FileLock second(lock);
      FAIL() << "locked twice";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
    }
  }
  EXPECT_TRUE(fs::exists(lock));
  const FileLock third(lock);
}

TEST_F(FolderTest, LockOfAKilledProcessIsFree) {
  const std::string lock = path("lock");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock held(lock);
    (void)!::write(ends[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  EXPECT_THROW(FileLock{lock}, Error);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const FileLock again(lock);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace onnxgrad::base::folder_test
