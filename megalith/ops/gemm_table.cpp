#include "megalith/ops/gemm_table.h"

#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_document.h"
#include "megalith/io/reader.h"

namespace megalith::ops {
namespace {

using io::JsonField;
using nlohmann::ordered_json;

constexpr int kVersion = 2;

constexpr std::array<std::pair<GemmEpilogue, std::string_view>, 5> kEpilogues = {
    {{GemmEpilogue::none, "none"},
     {GemmEpilogue::bias, "bias"},
     {GemmEpilogue::bias_gelu, "bias_gelu"},
     {GemmEpilogue::gelu_backward, "gelu_backward"},
     {GemmEpilogue::gelu_backward_bias_grad, "gelu_backward_bias_grad"}}};

std::string_view name_of(GemmEpilogue epilogue) {
  for (const auto& [one, name] : kEpilogues) {
    if (one == epilogue) return name;
  }
  throw InternalError("[gemm table] an epilogue has no name");
}

/// The parts of an algorithm by their keys: writing and reading go through this one list.
constexpr std::array<std::pair<const char*, std::int64_t GemmAlgorithm::*>, 10> kParts = {
    {{"id", &GemmAlgorithm::id},
     {"tile", &GemmAlgorithm::tile},
     {"stages", &GemmAlgorithm::stages},
     {"split_k", &GemmAlgorithm::split_k},
     {"reduction", &GemmAlgorithm::reduction},
     {"swizzle", &GemmAlgorithm::swizzle},
     {"custom", &GemmAlgorithm::custom},
     {"inner_shape", &GemmAlgorithm::inner_shape},
     {"cluster_shape", &GemmAlgorithm::cluster_shape},
     {"ordinal", &GemmAlgorithm::ordinal}}};

constexpr std::string_view name_of(ScaleBlocks blocks) {
  return blocks == ScaleBlocks::vectors ? "vectors" : "squares";
}

ordered_json to_json(const GemmProblem& problem, const GemmAlgorithm& algorithm) {
  ordered_json parts = ordered_json::object();
  for (const auto& [key, part] : kParts) parts[key] = algorithm.*part;
  ordered_json out = {{"m", problem.m},
                      {"n", problem.n},
                      {"k", problem.k},
                      {"in", megalith::name_of(problem.in)},
                      {"out", megalith::name_of(problem.out)},
                      {"transpose_a", problem.transpose_a == Transpose::yes},
                      {"transpose_b", problem.transpose_b == Transpose::yes},
                      {"accumulate", problem.write == Write::accumulate},
                      {"epilogue", name_of(problem.epilogue)},
                      {"left_free", problem.sm_margin},  // the name that sm_margin has in files
                      {"alignment", problem.alignment},
                      {"algorithm", parts}};
  if (problem.a_scales) out["a_scales"] = name_of(*problem.a_scales);
  if (problem.b_scales) out["b_scales"] = name_of(*problem.b_scales);
  return out;
}

[[noreturn]] void refuse(const JsonField& field, const auto& value, std::string_view rule) {
  field.fail(str("= ", value, ": ", rule));
}

Index extent_from(const JsonField& field) {
  constexpr Index kMax = std::numeric_limits<std::int32_t>::max();
  const Index extent = field.integer();
  if (extent < 1 || extent > kMax) refuse(field, extent, str("must be from 1 to ", kMax));
  return extent;
}

DType dtype_from(const JsonField& field) {
  const std::string name = field.text();
  const std::optional<DType> dtype = dtype_named(name);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    refuse(field, io::printable(name), "must be f32, bf16 or f16");
  return *dtype;
}

GemmEpilogue epilogue_from(const JsonField& field) {
  const std::string text = field.text();
  for (const auto& [epilogue, name] : kEpilogues) {
    if (name == text) return epilogue;
  }
  refuse(field, io::printable(text), "is not a known epilogue");
}

std::int32_t alignment_from(const JsonField& field) {
  const std::int64_t bytes = field.integer();
  if (bytes < 1 || bytes > 256 || !std::has_single_bit(static_cast<std::uint64_t>(bytes)))
    refuse(field, bytes, "must be a power of two up to 256");
  return static_cast<std::int32_t>(bytes);
}

std::int32_t sm_margin_from(const JsonField& field) {
  constexpr std::int64_t kMax = 1 << 16;
  const std::int64_t count = field.integer();
  if (count < 0 || count > kMax) refuse(field, count, str("must be from 0 to ", kMax));
  return static_cast<std::int32_t>(count);
}

std::optional<ScaleBlocks> blocks_from(const JsonField& field) {
  const std::string text = field.text();
  for (const ScaleBlocks blocks : {ScaleBlocks::vectors, ScaleBlocks::squares}) {
    if (name_of(blocks) == text) return blocks;
  }
  refuse(field, io::printable(text), "must be vectors or squares");
}

/// `has_scales`: the operands are in E4M3, whose codes are u8.
GemmProblem problem_from(const JsonField& field, bool has_scales) {
  const auto transpose = [&](const char* key) { return field.at(key).boolean() ? Transpose::yes : Transpose::no; };
  const auto scales = [&](const char* key) { return has_scales ? blocks_from(field.at(key)) : std::nullopt; };
  return {.m = extent_from(field.at("m")),
          .n = extent_from(field.at("n")),
          .k = extent_from(field.at("k")),
          .in = has_scales ? DType::u8 : dtype_from(field.at("in")),
          .out = dtype_from(field.at("out")),
          .transpose_a = transpose("transpose_a"),
          .transpose_b = transpose("transpose_b"),
          .write = field.at("accumulate").boolean() ? Write::accumulate : Write::overwrite,
          .epilogue = epilogue_from(field.at("epilogue")),
          .sm_margin = sm_margin_from(field.at("left_free")),
          .alignment = alignment_from(field.at("alignment")),
          .a_scales = scales("a_scales"),
          .b_scales = scales("b_scales")};
}

GemmAlgorithm algorithm_from(const JsonField& field) {
  field.expect_keys(
      {"id", "tile", "stages", "split_k", "reduction", "swizzle", "custom", "inner_shape", "cluster_shape", "ordinal"});
  GemmAlgorithm algorithm;
  for (const auto& [key, part] : kParts) algorithm.*part = field.at(key).integer();
  return algorithm;
}

}  // namespace

GemmBytes bytes_of(const GemmProblem& problem) {
  const Index m = problem.m, n = problem.n, k = problem.k;
  const GemmEpilogue epilogue = problem.epilogue;
  const bool has_vector = epilogue != GemmEpilogue::none && epilogue != GemmEpilogue::gelu_backward;
  const bool has_activation = epilogue != GemmEpilogue::none && epilogue != GemmEpilogue::bias;
  const auto scales = [&](const std::optional<ScaleBlocks>& blocks, Index rows) {
    return blocks ? scales_shape(*blocks, rows, k).numel() * size_of(DType::f32) : 0;
  };
  return {.a = m * k * size_of(problem.in),
          .b = k * n * size_of(problem.in),
          .c = m * n * size_of(problem.out),
          .vector = has_vector ? n * size_of(DType::f32) : 0,
          .activation = has_activation ? m * n * size_of(problem.in) : 0,
          .a_scales = scales(problem.a_scales, m),
          .b_scales = scales(problem.b_scales, n)};
}

std::string GemmPlatform::text() const { return str(gpu, " (compute ", capability, ", ", library, ")"); }

std::string gemm_table_text(const GemmTable& table) {
  ordered_json products = ordered_json::array();
  for (const auto& [problem, algorithm] : table.products) products.push_back(to_json(problem, algorithm));
  return io::seal_json({{"version", kVersion},
                        {"gpu", table.platform.gpu},
                        {"compute_capability", table.platform.capability},
                        {"library", table.platform.library},
                        {"products", products}});
}

GemmTable parse_gemm_table(std::string_view text, std::string_view source) {
  const io::JsonFormat format{.source = source, .what = "table of GEMM algorithms", .version = kVersion};
  const nlohmann::json tree = io::parse_sealed_json(text, format);
  const JsonField root(tree, format);
  if (const std::int64_t version = root.at("version").integer(); version != kVersion)
    refuse(root.at("version"), version, str("this program reads version ", kVersion, "; have the table rebuilt"));
  root.expect_keys({"checksum", "version", "gpu", "compute_capability", "library", "products"});
  GemmTable table{.platform = {.gpu = root.at("gpu").text(),
                               .capability = root.at("compute_capability").text(),
                               .library = root.at("library").text()},
                  .products = {}};
  root.at("products").each([&](const JsonField& product) {
    const bool has_scales = product.at("in").text() == megalith::name_of(DType::u8);
    if (has_scales) {
      product.expect_keys({"m", "n", "k", "in", "out", "transpose_a", "transpose_b", "accumulate", "epilogue",
                           "left_free", "alignment", "algorithm", "a_scales", "b_scales"});
    } else {
      product.expect_keys({"m", "n", "k", "in", "out", "transpose_a", "transpose_b", "accumulate", "epilogue",
                           "left_free", "alignment", "algorithm"});
    }
    if (!table.products.emplace(problem_from(product, has_scales), algorithm_from(product.at("algorithm"))).second)
      product.fail("is there twice");
  });
  return table;
}

}  // namespace megalith::ops
