#include <gtest/gtest.h>

#include "cc/api/client.h"

namespace reverb_tf {
namespace {

Status Check(const std::string& address) {
  ClientOptions options;
  options.address = address;
  return options.Validate();
}

TEST(ClientOptionsTest, AcceptsWhatGrpcCanReach) {
  for (const char* address :
       {"localhost:1", "nohost:65535", "10.0.0.1:80", "[::1]:80", "unix:/tmp/s",
        "unix:///tmp/s", "unix-abstract:name", "dns:///host:80", "dns:host:80",
        "dns://8.8.8.8/host:80", "ipv4:1.2.3.4:5,6.7.8.9:10", "ipv6:[::1]:5"}) {
    EXPECT_TRUE(Check(address).ok()) << address << ": " << Check(address);
  }
}

TEST(ClientOptionsTest, RefusesMalformedAddresses) {
  for (const char* address : {"",
                              "localhost",
                              "localhost:",
                              "localhost:0",
                              "localhost:99999",
                              "localhost:x",
                              "localhost:-1",
                              ":80",
                              "http://localhost:8000",
                              "https://h:1",
                              "::1:80",
                              "[::1]",
                              "[::1:80",
                              "[]:80",
                              "ftp://h:1",
                              "dns:///host",
                              "dns://host",
                              "unix:",
                              "a b:1",
                              "ipv4:1.2.3.4",
                              "localhost:99999999999999999999"}) {
    EXPECT_EQ(Check(address).code(), StatusCode::kInvalidArgument) << address;
    EXPECT_NE(Check(address).message().find(address), std::string::npos);
  }
}

}  // namespace
}  // namespace reverb_tf
