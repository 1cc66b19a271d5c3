#include "cc/service/local_registry.h"

#include <gtest/gtest.h>

#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

std::shared_ptr<Service> MakeService() {
  return std::make_shared<Service>(
      Store::Create({std::make_shared<TableRunner>(ReplayConfig())}, "localhost:1")
          .value());
}

TEST(LocalRegistryTest, UnknownAddressesAreNeitherServedNorEnded) {
  const LocalServer found = FindLocalServer("localhost:1000");
  EXPECT_EQ(found.service, nullptr);
  EXPECT_FALSE(found.ended);
}

TEST(LocalRegistryTest, FindsAServerByAllItsNamesUntilItEnds) {
  const auto service = MakeService();
  const std::vector<std::string> names = {"localhost:1001", "[::1]:1001"};
  RegisterLocalServer(names, service);
  for (const auto& name : names) EXPECT_EQ(FindLocalServer(name).service, service);
  UnregisterLocalServer(names, service.get());
  UnregisterLocalServer(names, service.get());
  for (const auto& name : names) {
    EXPECT_EQ(FindLocalServer(name).service, nullptr);
    EXPECT_TRUE(FindLocalServer(name).ended);
  }
  EXPECT_EQ(service.use_count(), 1);
}

TEST(LocalRegistryTest, ASuccessorTakesTheAddressOver) {
  const auto first = MakeService(), second = MakeService();
  RegisterLocalServer({"localhost:1002"}, first);
  RegisterLocalServer({"localhost:1002"}, second);
  UnregisterLocalServer({"localhost:1002"}, first.get());
  EXPECT_EQ(FindLocalServer("localhost:1002").service, second);
  EXPECT_FALSE(FindLocalServer("localhost:1002").ended);
  UnregisterLocalServer({"localhost:1002"}, second.get());
}

}  // namespace
}  // namespace reverb_tf
