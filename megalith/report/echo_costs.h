#pragma once
#include "megalith/base/types.h"

namespace megalith::apps {

/// What a clone costs and saves. Its weights and gradients cross a link; its pairs are computed elsewhere. Both are in
/// proportion to the expert's size, so that the number of pairs at which they are equal is not.
struct EchoCosts {
  double link_gbps = 0;       ///< 10^9 bytes/s that a rank sends and receives; 0: not known
  double tflops = 0;          ///< 10^12 operations/s of a rank's GEMMs; 0: not known
  Index weight_bytes = 2;     ///< of one weight; gradients have 4
  Index hidden = 0, ffn = 0;  ///< of a gated expert, which has 3 hidden ffn weights; 0: not known

  bool has_rates() const { return link_gbps > 0 && tflops > 0; }
  bool has_bytes() const { return hidden > 0 && ffn > 0; }
  /// Pairs at which a clone pays for itself, where nothing hides its transfer: a pair costs 6 operations a weight
  /// forward and backward, a clone `bytes` a weight.
  double pairs_for(double bytes, double operations) const {
    return bytes * tflops * 1e12 / (operations * link_gbps * 1e9);
  }
  double forward() const { return pairs_for(static_cast<double>(weight_bytes), 2); }
  double keep() const { return pairs_for(static_cast<double>(weight_bytes) + 4, 6); }
  double redispatch() const { return pairs_for(2 * static_cast<double>(weight_bytes) + 4, 6); }
  double weights_bytes() const { return static_cast<double>(3 * hidden * ffn * weight_bytes); }
  double gradient_bytes() const { return static_cast<double>(3 * hidden * ffn * 4); }
};

}  // namespace megalith::apps
