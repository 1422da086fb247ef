#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::convert {

/// The keys of a config.json, or of an object in it. A key whose value is null is as if it were missing, unless stated.
/// Every member throws InputError "[FILE] KEY = VALUE: RULE".
class HfConfig {
 public:
  static constexpr Index kMaxSize = Index{1} << 24;

  HfConfig(io::Fs& fs, const io::Path& file);

  bool has(const char* key) const;
  Index size(const char* key, Index most = kMaxSize) const;
  Index size_or(const char* key, Index otherwise) const;
  /// In [0, 1).
  double probability_or(const char* key, double otherwise) const;
  double positive(const char* key) const;
  double positive_or(const char* key, double otherwise) const;
  double not_negative_or(const char* key, double otherwise) const;
  bool flag_or(const char* key, bool otherwise) const;
  std::string text(const char* key) const;
  std::string text_or(const char* key, std::string_view otherwise) const;
  /// A list of texts; empty where it is missing.
  std::vector<std::string> texts(const char* key) const;
  /// A list of whole numbers from 0 on; empty where it is missing.
  std::vector<Index> counts(const char* key) const;
  /// The classes of a classifier by number: id2label, or as many as num_labels, which is 2 if it is missing, without a
  /// name each.
  std::vector<std::string> labels() const;
  /// The object of a key; its keys are named "KEY.NAME" in errors.
  HfConfig object(const char* key) const;

  /// A key that may be missing, and must have this value where it is not. Null is a value.
  void expect(const char* key, const nlohmann::json& wanted, std::string_view rule) const;
  /// The same, where null is as good as missing.
  void expect_or_null(const char* key, const nlohmann::json& wanted, std::string_view rule) const;
  /// Throws for a key that is not null and not one of these.
  void expect_only(std::span<const std::string_view> keys, std::string_view rule) const;
  /// Whether both have the same keys and values.
  bool equals(const HfConfig& other) const;

  const std::string& file() const { return file_; }
  [[noreturn]] void fail(const std::string& key, std::string_view rule) const;

 private:
  HfConfig(std::string file, std::string path, std::shared_ptr<const nlohmann::json> object);
  /// Null where it is missing.
  const nlohmann::json& value(const char* key) const;

  std::string file_, path_;  // path_: in front of keys, "rope_scaling."
  std::shared_ptr<const nlohmann::json> json_;
};

}  // namespace megalith::convert
