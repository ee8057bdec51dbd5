#include "base/own_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/folder.h"
#include "onnxgrad/error.h"

namespace onnxgrad::base::own_file_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kPrecious = "precious";

class OwnFileTest : public testing::Test {
 protected:
  OwnFileTest() {
    std::string pattern = (fs::temp_directory_path() / "onnxgrad-own-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    fs::create_directory(root_ / "folder");
    write(root_ / "victim", kPrecious);
  }
  ~OwnFileTest() override { fs::remove_all(root_); }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path() const { return (root_ / "folder" / "lock").string(); }

  // The message of open_own; empty if it opens the file.
  std::string refusal(int flags) const {
    try {
      ::close(open_own(path(), flags));
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.place().file, path());
      return error.problem().what;
    }
  }

  fs::path root_;
};

struct Stranger {
  std::string name;
  std::function<void(const fs::path& place, const fs::path& victim)> put;
  std::string refused_as;
  bool is_readable = false;
};

std::vector<Stranger> strangers() {
  const auto mode = [](mode_t bits) {
    return [bits](const fs::path& place, const fs::path&) {
      std::ofstream(place) << "text";
      ASSERT_EQ(::chmod(place.c_str(), bits), 0);
    };
  };
  return {
      {"a link",
       [](const fs::path& place, const fs::path& victim) { fs::create_symlink(victim, place); },
       "symbolic link"},
      {"a link to nothing",
       [](const fs::path& place, const fs::path&) { fs::create_symlink("nothing", place); },
       "symbolic link"},
      {"a hard link",
       [](const fs::path& place, const fs::path& victim) { fs::create_hard_link(victim, place); },
       "another name", true},
      {"a pipe",
       [](const fs::path& place, const fs::path&) { ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0); },
       "pipe"},
      {"a folder", [](const fs::path& place, const fs::path&) { fs::create_directory(place); },
       "folder"},
      {"a file for everybody", mode(0666), "everybody may write"},
  };
}

TEST_F(OwnFileTest, RefusesWhatStandsInItsPlaceWithoutFollowingOrBlocking) {
  for (const Stranger& stranger : strangers()) {
    stranger.put(path(), root_ / "victim");
    EXPECT_THAT(refusal(O_CREAT | O_RDWR | O_TRUNC), HasSubstr(stranger.refused_as))
        << stranger.name;
    EXPECT_THROW(FileLock{path()}, Error) << stranger.name;
    const std::string reading = refusal(O_RDONLY);
    if (stranger.is_readable) {
      EXPECT_EQ(reading, "") << stranger.name;
    } else {
      EXPECT_THAT(reading, HasSubstr(stranger.refused_as)) << stranger.name;
      EXPECT_THROW(ReadableFile::open(path(), PathOf::kOwn), Error) << stranger.name;
    }
    EXPECT_EQ(read(root_ / "victim"), kPrecious) << stranger.name;
    fs::remove_all(path());
  }
}

TEST_F(OwnFileTest, ReplacesNamesAndNotWhatTheyLeadTo) {
  for (const Stranger& stranger : strangers()) {
    stranger.put(path(), root_ / "victim");
    if (stranger.name == "a folder") {
      EXPECT_THROW(write_atomically(path(), "new", Existing::kReplaceOwn), Error);
    } else {
      write_atomically(path(), "new", Existing::kReplaceOwn);
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path()))) << stranger.name;
      EXPECT_EQ(read(path()), "new") << stranger.name;
      EXPECT_EQ(refusal(O_RDWR), "") << stranger.name;
    }
    EXPECT_EQ(read(root_ / "victim"), kPrecious) << stranger.name;
    fs::remove_all(path());
  }
}

TEST_F(OwnFileTest, NotEverybodyMayWriteWhateverTheUmask) {
  const mode_t before = ::umask(0);
  ::close(open_own(path(), O_CREAT | O_RDWR));
  write_atomically(path() + "2", "text", Existing::kReplaceOwn);
  ::umask(before);
  for (const std::string& name : {path(), path() + "2"}) {
    struct stat status{};
    ASSERT_EQ(::stat(name.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0664U) << name;
  }
}

TEST_F(OwnFileTest, FilesOfOtherUsers) {
  constexpr uid_t kOther = 12345;
  write(path(), "text");
  if (::chown(path().c_str(), kOther, static_cast<gid_t>(-1)) != 0) GTEST_SKIP() << "needs root";
  EXPECT_THAT(refusal(O_RDWR), HasSubstr("another user (12345)"));
  ASSERT_EQ(::chown((root_ / "folder").c_str(), kOther, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(refusal(O_RDWR), "");  // the folder is theirs, which was named by the user
  ASSERT_EQ(::chmod((root_ / "folder").c_str(), 01777), 0);
  EXPECT_THAT(refusal(O_RDONLY), HasSubstr("another user"));
}

}  // namespace
}  // namespace onnxgrad::base::own_file_test
