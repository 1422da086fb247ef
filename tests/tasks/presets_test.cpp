#include "megalith/tasks/presets.h"

#include <set>

#include <gtest/gtest.h>

namespace megalith::tasks {
namespace {

/// Batch, learning rate, epochs of 336m, 1.3b, 3.9b. Source: Shoeybi et al. 2019, arXiv:1909.08053, table 6.
struct Table6Row {
  std::string_view task;
  Index batch[3];
  double lr[3];
  Index epochs;
};
constexpr Table6Row kTable6[] = {{"mnli", {128, 128, 128}, {1e-5, 1e-5, 1e-5}, 10},
                                 {"qqp", {128, 128, 256}, {5e-5, 3e-5, 4e-5}, 12},
                                 {"squad1", {64, 48, 48}, {3e-5, 3e-5, 1e-5}, 2},
                                 {"squad2", {48, 64, 48}, {3e-5, 3e-5, 1e-5}, 2},
                                 {"race", {32, 16, 32}, {2e-5, 1e-5, 2e-5}, 3}};

TEST(TaskPresets, AllFifteenAreThoseOfTable6) {
  constexpr std::string_view kSizes[] = {"336m", "1.3b", "3.9b"};
  EXPECT_EQ(presets().size(), 15U);
  for (const Table6Row& row : kTable6) {
    const std::optional<Task> task = task_named(row.task);
    ASSERT_TRUE(task) << row.task;
    for (int i = 0; i < 3; ++i) {
      const std::optional<Preset> preset = preset_named(*task, kSizes[i]);
      ASSERT_TRUE(preset) << row.task << kSizes[i];
      EXPECT_EQ(preset->batch, row.batch[i]) << row.task << kSizes[i];
      EXPECT_EQ(preset->lr, row.lr[i]) << row.task << kSizes[i];
      EXPECT_EQ(preset->epochs, row.epochs) << row.task << kSizes[i];
    }
  }
  EXPECT_FALSE(preset_named(Task::mnli, "3.8b"));
}

TEST(TaskPresets, NamesLeadBackToTasks) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumTasks; ++i) {
    const auto task = static_cast<Task>(i);
    EXPECT_EQ(task_named(name_of(task)), task);
    names.insert(name_of(task));
  }
  EXPECT_EQ(names.size(), 5U);
  EXPECT_FALSE(task_named("squad"));
}

}  // namespace
}  // namespace megalith::tasks
