#include "cc/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::shared_ptr<TableRunner> Runner(const std::string& name) {
  return std::make_shared<TableRunner>(ReplayConfig(name));
}

TEST(StoreTest, FindsTablesByName) {
  auto store = Store::Create({Runner("a"), Runner("b")}, "localhost:1");
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*(*store)->Find("b"))->name(), "b");
  const Status status = (*store)->Find("c").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("Priority table c was not found"));
  EXPECT_THAT(status.message(), HasSubstr("'a', 'b'"));
}

TEST(StoreTest, RefusesNoTablesAndNamesTwice) {
  EXPECT_EQ(Store::Create({}, "x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Store::Create({nullptr}, "x").status().code(), StatusCode::kInvalidArgument);
  const Status twice = Store::Create({Runner("a"), Runner("a")}, "x").status();
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(twice.message(), HasSubstr("'a'"));
}

TEST(StoreTest, ServesNoneIfOneIsServedAlready) {
  const auto a = Runner("a"), b = Runner("b");
  auto first = Store::Create({b}, "localhost:1");
  ASSERT_TRUE(first.ok());
  const Status status = Store::Create({a, b}, "localhost:2").status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("localhost:1"));
  EXPECT_TRUE(Store::Create({a}, "localhost:3").ok());
}

TEST(StoreTest, StateIdsDiffer) {
  auto a = Store::Create({Runner("a")}, "x");
  auto b = Store::Create({Runner("a")}, "x");
  EXPECT_NE((*a)->state_id(), (*b)->state_id());
}

TEST(StoreTest, TheClockThreadExpiresWaiters) {
  const auto runner = Runner("a");
  auto store = Store::Create({runner}, "localhost:1");
  auto sampler = std::make_shared<RecordingSampler>();
  runner->AddSampler(sampler);
  const TimePoint now = Clock::System()->Now();
  runner->Sample(sampler, {1, now + std::chrono::milliseconds(20), nullptr});
  runner->Sample(sampler, {1, now + std::chrono::milliseconds(10), nullptr});
  sampler->WaitForDone(2);
  EXPECT_GE(Clock::System()->Now(), now + std::chrono::milliseconds(20));
  EXPECT_EQ(sampler->done()[0].code(), StatusCode::kDeadlineExceeded);
  runner->RemoveSampler(sampler.get(), {});
}

TEST(StoreTest, StopEndsWaitsAndNamesTheAddress) {
  const auto runner = Runner("a");
  auto store = Store::Create({runner}, "localhost:1");
  auto sampler = std::make_shared<RecordingSampler>();
  runner->AddSampler(sampler);
  runner->Sample(sampler, {1, kNever, nullptr});
  (*store)->Stop();
  (*store)->Stop();
  ASSERT_THAT(sampler->done(), SizeIs(1));
  EXPECT_EQ(sampler->done()[0], UnavailableError("server at localhost:1 was stopped"));
  runner->RemoveSampler(sampler.get(), {});
}

TEST(StoreTest, EndingItStopsItsTables) {
  const auto runner = Runner("a");
  Store::Create({runner}, "localhost:1").value().reset();
  EXPECT_EQ(runner->Reset().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace reverb_tf
