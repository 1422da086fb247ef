#include "megalith/report/page_server.h"

#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

PageAnswer test_page(std::string_view path) {
  if (path == "/fails") throw IoError("cannot read a/metrics.jsonl");
  if (path != "/") return {.status = 404, .body = "no"};
  return {.type = "text/html", .body = "a page", .tag = "\"7\""};
}

std::string answer_to(const std::string& request) { return http_answer(request, test_page); }

TEST(PageServer, AnswersGetAndHead) {
  const std::string get = answer_to("GET /?x=1 HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n");
  EXPECT_THAT(get, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(get, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(get, HasSubstr("\r\nETag: \"7\"\r\n"));
  EXPECT_THAT(get, ::testing::EndsWith("\r\n\r\na page"));
  const std::string head = answer_to("HEAD / HTTP/1.1\r\nhost:  LocalHost \r\n\r\n");
  EXPECT_THAT(head, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(head, ::testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\nHost: [::1]\r\nIf-None-Match: \"7\"\r\n\r\n"),
              StartsWith("HTTP/1.1 304 Not Modified\r\n"));
}

TEST(PageServer, RefusesEverythingElse) {
  const struct {
    const char *request, *status;
  } cases[] = {
      {"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"},
      {"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"},
      {"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"},
      {"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"},
      {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"},
      {"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\n\r\n", "421"},
      {"GET / HTTP/1.1\r\n\r\n", "421"},
      {"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
      {"GET /\r\n\r\n", "400"},
      {"\r\n\r\n", "400"},
      {" \r\n\r\n", "400"},
      {"GET / FTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
      {"GET /fails HTTP/1.1\r\nHost: localhost\r\n\r\n", "500"},
  };
  for (const auto& one : cases)
    EXPECT_THAT(answer_to(one.request), StartsWith(str("HTTP/1.1 ", one.status, ' '))) << one.request;
  EXPECT_THAT(answer_to("GET / HTTP/1.1\r\nHost: evil\r\n\r\n"), Not(HasSubstr("a page")));
}

/// Sends bytes, ends its side, and reads until the server ends the connection.
std::string talk_to(std::uint16_t port, const std::string& bytes) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return "no connection";
  (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
  std::string got;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::recv(socket, buffer, sizeof buffer, 0)) > 0;)
    got.append(buffer, static_cast<std::size_t>(n));
  ::close(socket);
  return got;
}

TEST(PageServer, OutlivesBadConnectionsAndNamesAPortThatIsTaken) {
  const std::string large(3 << 20, 'x');  // more than a socket takes at once
  PageServer server({.host = "127.0.0.1", .port = 0}, [&](std::string_view) { return PageAnswer{.body = large}; });
  std::atomic<bool> stop = false;
  std::thread serving([&] { server.serve(stop); });
  const std::uint16_t port = server.address().port;
  for (const std::string& bad : {std::string(), std::string("GET"), std::string(1000, '\0'), std::string("\r\n"),
                                 "GET / HTTP/1.1\r\nX: " + std::string(7000, 'a')})
    EXPECT_EQ(talk_to(port, bad), "") << bad.size();
  EXPECT_THAT(talk_to(port, std::string(20'000, 'a')),
              ::testing::AnyOf(::testing::IsEmpty(), StartsWith("HTTP/1.1 431 ")));
  EXPECT_THAT(talk_to(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), ::testing::EndsWith("\r\n\r\n" + large));
  try {
    PageServer(server.address(), test_page);
    ADD_FAILURE() << "the port is taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), StartsWith(str("--serve = 127.0.0.1:", port, ": cannot listen there: ")));
    EXPECT_THAT(error.what(), HasSubstr("choose another one, or 0 for a free one"));
  }
  stop = true;
  serving.join();
}

TEST(PageServer, ListensOnLoopbackOnly) {
  EXPECT_EQ(parse_loopback("127.0.0.1:8000").text(), "127.0.0.1:8000");
  EXPECT_EQ(parse_loopback("localhost:0").text(), "127.0.0.1:0");
  EXPECT_EQ(parse_loopback("[::1]:65535").text(), "[::1]:65535");
  for (const char* bad :
       {"0.0.0.0:8000", ":8000", "8000", "192.168.0.1:80", "example.org:80", "127.0.0.2:80", "[::]:80"}) {
    try {
      parse_loopback(bad);
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("must be 127.0.0.1:PORT")) << bad;
    }
  }
  for (const char* bad : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:80x", "localhost:-1"})
    EXPECT_THROW(parse_loopback(bad), ConfigError) << bad;
}

}  // namespace
}  // namespace megalith::apps
