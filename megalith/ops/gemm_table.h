#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/ops/matmul.h"
#include "megalith/ops/quantise.h"

namespace megalith::ops {

/// How the algorithms of a GPU's GEMMs are chosen: the fastest by timing, or the first by the library's own rules. The
/// latter is the same in every job without any table.
enum class GemmChoice : std::uint8_t { timed, heuristic };

/// What a GEMM does in addition to multiplying.
enum class GemmEpilogue : std::uint8_t { none, bias, bias_gelu, gelu_backward, gelu_backward_bias_grad };

/// A kind of GEMM, in row-major terms: c [m, n] (+)= op(a) [m, k] op(b) [k, n]. An algorithm depends on nothing else.
struct GemmProblem {
  Index m = 0, n = 0, k = 0;
  DType in = DType::bf16, out = DType::bf16;
  Transpose transpose_a = Transpose::no, transpose_b = Transpose::no;
  Write write = Write::overwrite;
  GemmEpilogue epilogue = GemmEpilogue::none;
  std::int32_t sm_margin = 0;    ///< SMs left free for concurrent communication
  std::int32_t alignment = 256;  ///< bytes, the same for every operand
  /// Of operands in E4M3, whose dtype `in` is u8; else neither is there. b is transposed then, a is not.
  std::optional<ScaleBlocks> a_scales = {}, b_scales = {};
  auto operator<=>(const GemmProblem&) const = default;
};

/// Bytes of a GEMM's operands. An epilogue that takes no vector or no activation has none, and only operands in E4M3
/// have scales.
struct GemmBytes {
  Index a = 0, b = 0, c = 0, vector = 0, activation = 0, a_scales = 0, b_scales = 0;
};
GemmBytes bytes_of(const GemmProblem& problem);

/// A library's algorithm: its public configuration, and its number among the algorithms that the library offers with
/// this configuration for the problem. On Hopper there are several, which differ in what is not public, and by percents
/// in speed. A file's entry selects one of the offered algorithms, or at worst none. Source: cuBLASLt's
/// CUBLASLT_ALGO_CONFIG_*.
struct GemmAlgorithm {
  std::int64_t id = 0, tile = 0, stages = 0, split_k = 0, reduction = 0, swizzle = 0, custom = 0, inner_shape = 0,
               cluster_shape = 0, ordinal = 0;
  auto operator<=>(const GemmAlgorithm&) const = default;
};

/// Where a table holds. Algorithms of another GPU or library version have other numbers, and another speed.
struct GemmPlatform {
  std::string gpu, capability, library;  ///< "NVIDIA H200", "9.0", "cuBLASLt 13.1.0"
  bool operator==(const GemmPlatform&) const = default;
  std::string text() const;  ///< "NVIDIA H200 (compute 9.0, cuBLASLt 13.1.0)"
};

/// The algorithm of every GEMM of a run. A run given the same table has the same bits.
struct GemmTable {
  GemmPlatform platform;
  std::map<GemmProblem, GemmAlgorithm> products;
  bool operator==(const GemmTable&) const = default;
  bool empty() const { return products.empty(); }
};

/// The table as JSON that carries its own checksum. Equal tables give equal bytes.
std::string gemm_table_text(const GemmTable& table);
/// Throws InputError with `source`, the key and the rule for a text that is damaged, of another version or no table.
GemmTable parse_gemm_table(std::string_view text, std::string_view source);

}  // namespace megalith::ops
