#include "cc/service/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    runner_->AddWriter(writer_);
    runner_->Insert(writer_, Inserts({1, 2, 3}));
  }

  std::shared_ptr<RecordingWriter> writer_ = std::make_shared<RecordingWriter>();
  std::shared_ptr<TableRunner> runner_ = std::make_shared<TableRunner>(ReplayConfig("t"));
  Service service_{Store::Create({runner_}, "localhost:1").value()};
};

TEST_F(ServiceTest, MutateReportsCounts) {
  const auto counts = service_.Mutate({"t", {{1, 2.0}, {9, 1.0}}, {2}});
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->updated, 1);
  EXPECT_EQ(counts->deleted, 1);
  EXPECT_EQ(counts->not_found, 1);
}

TEST_F(ServiceTest, UnknownTablesAreNotFound) {
  EXPECT_EQ(service_.Mutate({"x", {}, {}}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(service_.Reset("x").code(), StatusCode::kNotFound);
}

TEST_F(ServiceTest, ResetEmptiesTheTable) {
  EXPECT_TRUE(service_.Reset("t").ok());
  EXPECT_EQ(runner_->size(), 0);
}

TEST_F(ServiceTest, InfoTellsOfEveryTable) {
  const ServerInfo info = service_.Info();
  EXPECT_EQ(info.state_id, service_.store()->state_id());
  ASSERT_EQ(info.tables.size(), 1u);
  EXPECT_EQ(info.tables[0].config.name, "t");
  EXPECT_EQ(info.tables[0].current_size, 3);
  EXPECT_FALSE(info.tables[0].explain.empty());
}

TEST_F(ServiceTest, CallsAfterStopAreUnavailable) {
  service_.Stop();
  EXPECT_EQ(service_.Reset("t").code(), StatusCode::kUnavailable);
  EXPECT_EQ(service_.Mutate({"t", {}, {}}).status().code(), StatusCode::kUnavailable);
  const auto session = service_.OpenSample(Peer::kOwn, nullptr);
  SampleRequest request;
  request.table = "t";
  request.num_samples = 1;
  EXPECT_TRUE(session->Handle(request).ok());
  SampleReply reply;
  EXPECT_EQ(session->Take(1, 1, &reply).status().code(), StatusCode::kUnavailable);
  session->Close();
}

}  // namespace
}  // namespace reverb_tf
