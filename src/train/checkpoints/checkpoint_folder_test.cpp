#include "train/checkpoints/checkpoint_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <memory>

#include "train/testing/temporary_folder.h"

namespace onnxgrad::train::checkpoint_folder_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using train_test::read_bytes;
using train_test::TemporaryFolder;
using train_test::write_bytes;

Checkpoint numbers(std::int64_t value) {
  Checkpoint checkpoint;
  checkpoint.set("x", Tensor::scalar(value));
  return checkpoint;
}

struct Fixture {
  CheckpointFolder open(CheckpointFolder::Options options = {}) {
    return {temporary.path("run"), std::move(options),
            [this](const std::string& path, const std::string& why) {
              reports.push_back(fs::path(path).filename().string() + ": " + why);
            }};
  }
  std::string path(const std::string& name) const { return temporary.path("run/" + name); }
  std::vector<std::string> names() const { return base::list_files(temporary.path("run")); }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> found;
    for (const std::string& name : names()) {
      if (const auto step = checkpoint_step(name)) found.push_back(*step);
    }
    return found;
  }

  TemporaryFolder temporary;
  std::vector<std::string> reports;
};

void save(CheckpointFolder& folder, std::int64_t step, bool is_best = false) {
  Checkpoint checkpoint = numbers(step);
  EXPECT_TRUE(fs::exists(folder.save(checkpoint, step, is_best)));
}

TEST(CheckpointFolder, NamesSortByStep) {
  EXPECT_EQ(checkpoint_name(42), "ck-000000000042.safetensors");
  EXPECT_EQ(checkpoint_step("ck-000000000042.safetensors"), 42);
  for (const char* name : {"ck-42.safetensors", "ck-000000000042.safetensors.bad", "lock",
                           "ck-00000000004x.safetensors", "ck--00000000042.safetensors",
                           ".ck-000000000042.safetensors.onnxgrad-tmp-1-0"}) {
    EXPECT_FALSE(checkpoint_step(name)) << name;
  }
}

TEST(CheckpointFolder, KeepsTheNewestAndTheBest) {
  Fixture fixture;
  CheckpointFolder folder = fixture.open({.keep = 2});
  for (std::int64_t step = 1; step <= 6; ++step) save(folder, step, step == 2);
  EXPECT_THAT(fixture.steps(), ElementsAre(2, 5, 6));
  EXPECT_EQ(read_bytes(fixture.path("best")), checkpoint_name(2) + "\n");
  save(folder, 7, true);
  EXPECT_THAT(fixture.steps(), ElementsAre(6, 7));
  save(folder, 8);
  save(folder, 9);
  EXPECT_THAT(fixture.steps(), ElementsAre(7, 8, 9));
  EXPECT_THAT(fixture.reports, IsEmpty());
  EXPECT_EQ(folder.take_newest()->metadata.at("best"), checkpoint_name(7));
}

TEST(CheckpointFolder, TheBestIsKnownAgainAfterResuming) {
  Fixture fixture;
  {
    CheckpointFolder folder = fixture.open({.keep = 1});
    save(folder, 1, true);
    save(folder, 2);
  }
  CheckpointFolder folder = fixture.open({.keep = 1});
  const auto newest = folder.take_newest();
  folder.begin(2, &*newest);
  save(folder, 3);
  EXPECT_THAT(fixture.steps(), ElementsAre(1, 3));
}

TEST(CheckpointFolder, TakesTheNewestWholeOneAndNamesTheBad) {
  Fixture fixture;
  CheckpointFolder folder = fixture.open();
  for (std::int64_t step = 1; step <= 3; ++step) save(folder, step);
  const std::string whole = read_bytes(fixture.path(checkpoint_name(3)));
  write_bytes(fixture.path(checkpoint_name(3)), whole.substr(0, whole.size() - 1));
  write_bytes(fixture.path(checkpoint_name(4)), "");
  EXPECT_EQ(newest_checkpoint(folder.path(), nullptr)->find("x")->data<std::int64_t>()[0], 2);
  EXPECT_THAT(fixture.names(), SizeIs(5));  // 4 checkpoints and the lock
  const auto newest = folder.take_newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->find("x")->data<std::int64_t>()[0], 2);
  EXPECT_THAT(fixture.reports, ElementsAre(HasSubstr("ck-000000000004.safetensors: "),
                                           HasSubstr("ck-000000000003.safetensors: ")));
  EXPECT_THAT(fixture.steps(), ElementsAre(1, 2));
  EXPECT_TRUE(fs::exists(fixture.path(checkpoint_name(3) + ".bad")));
}

TEST(CheckpointFolder, DamagedFilesDoNotCountWhenPruning) {
  Fixture fixture;
  {
    CheckpointFolder folder = fixture.open({.keep = 4});
    for (std::int64_t step = 1; step <= 4; ++step) save(folder, step);
  }
  write_bytes(fixture.path(checkpoint_name(4)), "damaged");
  CheckpointFolder folder = fixture.open({.keep = 2});
  save(folder, 5);
  EXPECT_THAT(fixture.steps(), ElementsAre(3, 4, 5));  // 4 stays, but is none of the two
}

TEST(CheckpointFolder, OneWriterAtATime) {
  Fixture fixture;
  const CheckpointFolder first = fixture.open();
  try {
    (void)fixture.open();
    FAIL() << "two writers";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is writing to this folder"));
  }
}

TEST(CheckpointFolder, DoesNotOverwriteAnotherTraining) {
  Fixture fixture;
  CheckpointFolder folder = fixture.open();
  save(folder, 10);
  EXPECT_THROW(folder.begin(0, nullptr), CheckpointError);
  EXPECT_THROW(folder.begin(9, nullptr), CheckpointError);
  folder.begin(10, nullptr);
}

TEST(CheckpointFolder, RemovesWhatAKilledProcessLeft) {
  Fixture fixture;
  fs::create_directory(fixture.temporary.path("run"));
  write_bytes(fixture.path(".ck-000000000003.safetensors.onnxgrad-tmp-17-0"), "half");
  write_bytes(fixture.path(".best.onnxgrad-tmp-17-0"), "half");
  write_bytes(fixture.path(".mine"), "not ours");
  const CheckpointFolder folder = fixture.open();
  EXPECT_THAT(fixture.names(), ElementsAre(".mine", "lock"));
}

// In a folder that was unpacked, or that others may write to.
TEST(CheckpointFolder, LinksAreNotFollowed) {
  Fixture fixture;
  const std::string victim = fixture.temporary.path("victim");
  write_bytes(victim, "precious");
  fs::create_directory(fixture.temporary.path("run"));
  for (const std::string& name : {std::string("best"), checkpoint_name(2), checkpoint_name(3)}) {
    fs::create_symlink(victim, fixture.path(name));
  }
  ASSERT_EQ(::mkfifo(fixture.path(checkpoint_name(1)).c_str(), 0600), 0);
  {
    CheckpointFolder folder = fixture.open();
    EXPECT_FALSE(folder.take_newest());
    EXPECT_THAT(fixture.reports, testing::Each(HasSubstr("is a symbolic link")));
    EXPECT_TRUE(fs::is_symlink(fixture.path(checkpoint_name(3))));  // reported, and left
    save(folder, 1, true);
    save(folder, 2, true);
    EXPECT_EQ(read_bytes(fixture.path("best")), checkpoint_name(2) + "\n");
    EXPECT_EQ(folder.take_newest()->find("x")->data<std::int64_t>()[0], 2);
  }
  fs::remove(fixture.path("lock"));
  fs::create_symlink(victim, fixture.path("lock"));
  EXPECT_THROW(fixture.open(), CheckpointError);
  EXPECT_EQ(read_bytes(victim), "precious");
}

TEST(CheckpointFolder, FoldersThatCannotBeUsed) {
  const TemporaryFolder temporary;
  write_bytes(temporary.path("file"), "");
  EXPECT_THROW(CheckpointFolder(temporary.path("file"), {}, nullptr), CheckpointError);
  EXPECT_THROW(newest_checkpoint(temporary.path("none"), nullptr), CheckpointError);
  EXPECT_FALSE(newest_checkpoint(temporary.path(), nullptr));
}

/// A disk that has room for so many files of one size, and some.
FreeBytes room_for(const Fixture& fixture, std::int64_t files) {
  return [&fixture, files](const std::string&) -> std::optional<std::int64_t> {
    std::int64_t used = 0;
    std::int64_t largest = 0;
    for (const std::string& name : fixture.names()) {
      if (name == "lock" || name == "best") continue;
      const auto size = static_cast<std::int64_t>(fs::file_size(fixture.path(name)));
      used += size;
      largest = std::max(largest, size);
    }
    return largest == 0 ? std::nullopt : std::optional(files * largest + 100 - used);
  };
}

TEST(CheckpointFolder, MakesRoomOnAFullDisk) {
  struct Case {
    std::int64_t keep;
    std::int64_t room;               // files
    std::vector<std::int64_t> left;  // after ten saves, of which the fourth was the best
    int failed;
  };
  const std::vector<Case> cases{
      {3, 10, {4, 8, 9, 10}, 0},  // no need
      {3, 4, {4, 8, 9, 10}, 0},   // fewer stay while one is written
      {3, 3, {4, 9, 10}, 0},     {1, 3, {4, 10}, 0},
      {1, 2, {4, 5}, 5},  // the best and the newest stay
      {3, 2, {4, 5}, 5},         {1, 1, {1}, 9},
  };
  for (const Case& test : cases) {
    Fixture fixture;
    CheckpointFolder folder =
        fixture.open({.keep = test.keep, .free_bytes = room_for(fixture, test.room)});
    int failed = 0;
    for (std::int64_t step = 1; step <= 10; ++step) {
      try {
        save(folder, step, step == 4);
      } catch (const CheckpointError& error) {
        ++failed;
        EXPECT_THAT(error.what(), HasSubstr("a checkpoint needs"));
        EXPECT_THAT(error.what(), HasSubstr("is kept until the new one is complete"));
        EXPECT_THAT(error.what(), HasSubstr("Free space on the disk, or choose a folder"));
      }
    }
    const std::string what = fmt::format("keep {}, room for {}", test.keep, test.room);
    EXPECT_EQ(fixture.steps(), test.left) << what;
    EXPECT_EQ(failed, test.failed) << what;
  }
}

TEST(CheckpointFolder, WhatALargerNumberToKeepLeftGoesFirst) {
  Fixture fixture;
  {
    CheckpointFolder folder = fixture.open({.keep = 5, .keep_best = false});
    for (std::int64_t step = 1; step <= 5; ++step) save(folder, step);
  }
  CheckpointFolder folder =
      fixture.open({.keep = 1, .keep_best = false, .free_bytes = room_for(fixture, 5)});
  save(folder, 6);
  EXPECT_THAT(fixture.steps(), ElementsAre(6));
  EXPECT_THAT(fixture.reports, IsEmpty());
}

TEST(SaveCheckpointFile, LooksForRoomAndRespectsAFit) {
  Fixture fixture;
  const auto none_free = [](const std::string&) { return std::optional<std::int64_t>(10); };
  Checkpoint checkpoint;
  checkpoint.set("x", Tensor::from(std::vector<std::int64_t>{7}, Dims{1}));
  const auto refusal = [&](const std::string& name, const FreeBytes& free_bytes) {
    try {
      save_checkpoint_file(fixture.path(name), checkpoint, free_bytes);
      return std::string("saved");
    } catch (const CheckpointError& error) {
      EXPECT_NE(error.problem().hint.text(), "");
      return std::string(error.what());
    }
  };
  auto folder = std::make_unique<CheckpointFolder>(fixture.temporary.path("run"),
                                                   CheckpointFolder::Options{}, nullptr);
  EXPECT_THAT(refusal("mine", none_free), HasSubstr("bytes, but 10 are free"));
  EXPECT_FALSE(fs::exists(fixture.path("mine")));
  EXPECT_EQ(refusal("mine", base::available_bytes), "saved");
  EXPECT_EQ(read_checkpoint(fixture.path("mine")).find("x")->data<std::int64_t>()[0], 7);
  EXPECT_THAT(refusal(checkpoint_name(3), base::available_bytes),
              HasSubstr("is writing to this folder"));
  EXPECT_THAT(refusal("lock", base::available_bytes), HasSubstr("used by the checkpoints"));
  EXPECT_THAT(refusal("best", base::available_bytes), HasSubstr("used by the checkpoints"));
  folder.reset();
  EXPECT_EQ(refusal(checkpoint_name(3), base::available_bytes), "saved");
  EXPECT_THAT(fixture.steps(), ElementsAre(3));
}

}  // namespace onnxgrad::train::checkpoint_folder_test
