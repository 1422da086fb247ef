#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megalith::apps {

/// What a server of pages sends for a path.
struct PageAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8", body;
  std::string tag = {};  ///< ETag; a request that names it gets 304 and no body
};

/// An address of this machine to listen on.
struct LoopbackAddress {
  std::string host;  ///< "127.0.0.1" or "::1"
  std::uint16_t port = 0;
  std::string text() const;  ///< "127.0.0.1:8080"
};
/// "127.0.0.1:PORT", "localhost:PORT" or "[::1]:PORT"; port 0 takes a free one. Throws ConfigError for any other
/// address: pages of runs are for this machine only.
LoopbackAddress parse_loopback(std::string_view text);

/// A small HTTP/1.1 server of one thread: GET and HEAD only, one request a connection, nothing is ever written. A
/// request has at most 8 KiB and 10 s, 64 connections are open at most. A request for another host than this machine
/// is refused, so that no web page reads it under a name of its own (DNS rebinding).
/// Own code, as three pages of sockets are less than a package and its header of 9,000 lines.
class PageServer {
 public:
  using Answer = std::function<PageAnswer(std::string_view path)>;
  /// Listens. Throws ConfigError if the port is taken.
  PageServer(LoopbackAddress address, Answer answer);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;
  const LoopbackAddress& address() const { return address_; }  ///< with the port that was taken
  /// Serves until `stop` is set, which another thread may do.
  void serve(const std::atomic<bool>& stop);

 private:
  LoopbackAddress address_;
  Answer answer_;
  int listener_ = -1;
};

/// The bytes that answer a request, which ends with its empty line. Pure.
std::string http_answer(std::string_view request, const PageServer::Answer& answer);

}  // namespace megalith::apps
