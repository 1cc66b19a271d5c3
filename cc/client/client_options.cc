// ClientOptions::Validate: the forms that an address may have.
#include <cstdint>
#include <string>
#include <string_view>

#include "cc/api/client.h"

namespace reverb_tf {
namespace {

bool StartsWith(std::string_view s, std::string_view prefix) {
  return s.substr(0, prefix.size()) == prefix;
}

Status Malformed(const std::string& address, const std::string& why) {
  return InvalidArgumentError("server_address: got '" + address + "': " + why +
                              "; expected 'host:port', '[v6 address]:port', 'unix:/path' "
                              "or a gRPC target (dns:///, ipv4:, ipv6:)");
}

Status CheckPort(const std::string& address, std::string_view port) {
  if (port.empty()) return Malformed(address, "there is no port");
  int64_t number = 0;
  for (const char c : port) {
    if (c < '0' || c > '9' || port.size() > 5) {
      return Malformed(
          address, "the port '" + std::string(port) + "' is not a number of 1 ... 65535");
    }
    number = number * 10 + (c - '0');
  }
  if (number >= 1 && number <= 65535) return OkStatus();
  return Malformed(address,
                   "the port " + std::string(port) + " is not in the range 1 ... 65535");
}

// "host:port" or "[v6]:port".
Status CheckHostPort(const std::string& address, std::string_view endpoint) {
  std::string_view host, port;
  if (StartsWith(endpoint, "[")) {
    const size_t close = endpoint.find(']');
    if (close == std::string_view::npos) return Malformed(address, "']' is missing");
    host = endpoint.substr(1, close - 1);
    const std::string_view rest = endpoint.substr(close + 1);
    if (!StartsWith(rest, ":")) return Malformed(address, "there is no port");
    port = rest.substr(1);
  } else {
    const size_t colon = endpoint.rfind(':');
    if (colon == std::string_view::npos) return Malformed(address, "there is no port");
    host = endpoint.substr(0, colon);
    port = endpoint.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) {
      return Malformed(address, "an IPv6 address needs brackets: '[address]:port'");
    }
  }
  if (host.empty()) return Malformed(address, "there is no host");
  return CheckPort(address, port);
}

// "host:port[,host:port ...]" of ipv4: and ipv6: targets.
Status CheckList(const std::string& address, std::string_view list) {
  while (true) {
    const size_t comma = list.find(',');
    RTF_RETURN_IF_ERROR(CheckHostPort(address, list.substr(0, comma)));
    if (comma == std::string_view::npos) return OkStatus();
    list.remove_prefix(comma + 1);
  }
}

// "dns:host:port" or "dns://authority/host:port".
Status CheckDns(const std::string& address, std::string_view target) {
  if (StartsWith(target, "//")) {
    const size_t slash = target.find('/', 2);
    if (slash == std::string_view::npos) return Malformed(address, "there is no host");
    target.remove_prefix(slash + 1);
  }
  return CheckHostPort(address, target);
}

}  // namespace

Status ClientOptions::Validate() const {
  const std::string_view a = address;
  if (a.empty()) return Malformed(address, "it is empty");
  for (const char c : a) {
    if (static_cast<unsigned char>(c) > ' ' && c != '\x7f') continue;
    return Malformed(address, "it has white space or control characters");
  }
  if (StartsWith(a, "http://") || StartsWith(a, "https://")) {
    return Malformed(address,
                     "leave '" + address.substr(0, address.find("//") + 2) + "' out");
  }
  if (StartsWith(a, "unix:")) {
    return a.size() > 5 ? OkStatus() : Malformed(address, "there is no path");
  }
  if (StartsWith(a, "unix-abstract:")) {
    return a.size() > 14 ? OkStatus() : Malformed(address, "there is no name");
  }
  if (StartsWith(a, "dns:")) return CheckDns(address, a.substr(4));
  if (StartsWith(a, "ipv4:") || StartsWith(a, "ipv6:")) {
    return CheckList(address, a.substr(5));
  }
  if (a.find("://") != std::string_view::npos) {
    return Malformed(address, "unknown scheme");
  }
  return CheckHostPort(address, a);
}

}  // namespace reverb_tf
