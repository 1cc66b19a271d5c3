#include "cc/base/logging.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using Lines = std::vector<std::pair<LogLevel, std::string>>;

TEST(LoggingTest, LinesReachTheSink) {
  Lines lines;
  SetLogSink([&lines](LogLevel level, const std::string& message) {
    lines.emplace_back(level, message);
  });
  Log(LogLevel::kDebug, "quiet");
  Log(LogLevel::kError, "loud");
  SetLogSink([](LogLevel, const std::string&) {});
  Log(LogLevel::kError, "elsewhere");
  EXPECT_EQ(lines, (Lines{{LogLevel::kDebug, "quiet"}, {LogLevel::kError, "loud"}}));
}

TEST(LoggingTest, SinkMayReplaceItself) {
  int calls = 0;
  SetLogSink([&calls](LogLevel, const std::string&) {
    ++calls;
    SetLogSink([](LogLevel, const std::string&) {});
  });
  Log(LogLevel::kInfo, "first");
  Log(LogLevel::kInfo, "second");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace reverb_tf
