#include "cc/client/ack_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(AckLedgerTest, DeliveriesInOrderAreReportedCumulatively) {
  AckLedger ledger;
  EXPECT_EQ(ledger.Add(3), 0);
  EXPECT_EQ(ledger.Add(2), 3);
  EXPECT_FALSE(ledger.has_news());
  ledger.Deliver(0, 2);
  ledger.Deliver(2, 1);
  EXPECT_TRUE(ledger.has_news());
  SampleRequest request;
  ledger.Report(&request);
  EXPECT_EQ(request.delivered, 3);
  EXPECT_THAT(request.returned, IsEmpty());
  EXPECT_FALSE(ledger.has_news());
  EXPECT_EQ(ledger.num_pending(), 2);
}

TEST(AckLedgerTest, DeliveriesOutOfOrderWaitForTheEarlierOnes) {
  AckLedger ledger;
  ledger.Add(4);
  ledger.Deliver(1, 2);
  EXPECT_FALSE(ledger.has_news());
  ledger.Deliver(0, 1);
  SampleRequest request;
  ledger.Report(&request);
  EXPECT_EQ(request.delivered, 3);
}

TEST(AckLedgerTest, ReturnsAreReportedOnceAndCountAsSettled) {
  AckLedger ledger;
  ledger.Add(4);
  ledger.Return(2, 1);
  SampleRequest request;
  ledger.Report(&request);
  EXPECT_EQ(request.delivered, 0);
  EXPECT_THAT(request.returned, ElementsAre(2));
  ledger.Deliver(0, 2);
  ledger.Report(&request);
  EXPECT_EQ(request.delivered, 3);
  EXPECT_THAT(request.returned, IsEmpty());
}

}  // namespace
}  // namespace reverb_tf
