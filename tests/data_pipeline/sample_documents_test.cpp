#include "megalith/data/sample_documents.h"

#include <vector>

#include <gtest/gtest.h>

namespace megalith::data {
namespace {

struct PlacedDocuments {
  explicit PlacedDocuments(std::size_t size) : begin(size, 99), positions(size, 99) {}
  SampleDocuments view() { return {begin, positions}; }
  std::vector<std::int32_t> begin, positions;
};

TEST(SampleDocuments, EndWithTheirLastToken) {
  const auto expect = [](const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& begin,
                         const std::vector<std::int32_t>& positions) {
    PlacedDocuments got(tokens.size());
    put_documents_of(tokens, 7, got.view());
    EXPECT_EQ(got.begin, begin);
    EXPECT_EQ(got.positions, positions);
  };
  expect({1, 2, 7, 3, 4, 7, 5}, {0, 0, 0, 3, 3, 3, 6}, {0, 1, 2, 0, 1, 2, 0});
  expect({7, 7, 1}, {0, 1, 2}, {0, 0, 0});
  expect({1, 2, 7}, {0, 0, 0}, {0, 1, 2});
  expect({1, 2, 3}, {0, 0, 0}, {0, 1, 2});
}

TEST(SampleDocuments, EachTokenOfPaddingIsOne) {
  PlacedDocuments got(5);
  got.view().put(0, 3);
  got.view().put_padding(3);
  EXPECT_EQ(got.begin, std::vector<std::int32_t>({0, 0, 0, 3, 4}));
  EXPECT_EQ(got.positions, std::vector<std::int32_t>({0, 1, 2, 0, 0}));
}

}  // namespace
}  // namespace megalith::data
