// Products of rows in bfloat16 with weights of 4 and 8 bits, on processors with AVX512-VNNI and
// AVX512-VBMI: those of PyTorch compute in float32, and keep a processor busy for longer than it
// takes to read the weights.
//
// Weights and inputs meet as integers here. A span of 64 inputs of a row has a step, a power of
// two. Each input is a whole number of steps, which has up to 22 bits and is written in three
// digits of 7 bits, so that an input stays exact unless it is below 1/8192 of the largest of its
// span. Sums within a span are exact. Sums of spans are in float32.

#include <immintrin.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using torch::stable::Tensor;

constexpr int64_t SPAN = 64;    // inputs of a row that share a step
constexpr int64_t GROUP = 32;   // inputs of an output that share scale and middle
constexpr int64_t SLAB = 64;    // outputs of 4 bits that are packed together
constexpr int64_t LANES = 16;   // numbers of 32 bits in a register
constexpr int DIGITS = 3;       // of an input, the first of them with the sign
constexpr int64_t AHEAD = 4096; // bytes by which weights of 4 bits are fetched before they are read

__m512i load(const void* place) {
  return _mm512_loadu_si512(place);
}

float number_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Numbers in float32 from 16 in bfloat16.
__m512 widened(const uint16_t* place) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Numbers in bfloat16 from 16 in float32, rounded to the nearest, or to the even one of two.
__m256i narrowed(__m512 numbers) {
  const __m512i bits = _mm512_castps_si512(numbers);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, half), 16));
}

// One number from its three digits, or a sum of numbers from the sums of their digits.
__m512i composed(const __m512i (&digits)[DIGITS]) {
  const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(digits[0], 7), digits[1]);
  return _mm512_add_epi32(_mm512_slli_epi32(high, 7), digits[2]);
}

// Rows as whole numbers of steps.
struct Rows {
  int64_t inputs;
  std::vector<int8_t> digits[DIGITS]; // of every input
  std::vector<float> step;            // of every span
  std::vector<float> sum;             // of every group
  std::vector<int32_t> group_steps;   // sum of every group in steps
  std::vector<int32_t> four_steps;    // sum of every four inputs in steps

  Rows(const uint16_t* numbers, int64_t count, int64_t inputs)
      : inputs(inputs),
        step(count * inputs / SPAN),
        sum(count * inputs / GROUP),
        group_steps(sum.size()),
        four_steps(count * inputs / 4) {
    for (auto& digit : digits) {
      digit.resize(count * inputs);
    }
    for (size_t span = 0; span < step.size(); ++span) {
      read(numbers + span * SPAN, span);
    }
  }

 private:
  void read(const uint16_t* numbers, int64_t span) {
    const int exponent = largest_exponent(numbers);
    // A span with an infinity or no number has no number as its step, and tiny ones are zero.
    const bool is_usual = exponent > 20 && exponent < 255;
    const uint32_t otherwise = exponent < 255 ? 0 : 0x7fc00000;
    step[span] = number_of(is_usual ? uint32_t(exponent - 20) << 23 : otherwise);
    const float steps_in_one = number_of(is_usual ? uint32_t(274 - exponent) << 23 : 0);
    const __m512i seven_bits = _mm512_set1_epi32(127);
    for (int64_t at = 0; at < SPAN; at += LANES) {
      const __m512 scaled = _mm512_mul_ps(widened(numbers + at), _mm512_set1_ps(steps_in_one));
      const __m512i whole = _mm512_cvtps_epi32(scaled);
      const int64_t place = span * SPAN + at;
      store(0, place, _mm512_srai_epi32(whole, 14));
      store(1, place, _mm512_and_si512(_mm512_srai_epi32(whole, 7), seven_bits));
      store(2, place, _mm512_and_si512(whole, seven_bits));
    }
    add(span);
  }

  static int largest_exponent(const uint16_t* numbers) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    const __m512i former = _mm512_and_si512(load(numbers), magnitude);
    const __m512i latter = _mm512_and_si512(load(numbers + SPAN / 2), magnitude);
    const __m512i pairs = _mm512_max_epu16(former, latter);
    const __m512i odd = _mm512_srli_epi32(pairs, 16);
    const __m512i even = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff));
    return _mm512_reduce_max_epi32(_mm512_max_epi32(odd, even)) >> 7;
  }

  void store(int digit, int64_t place, __m512i values) {
    auto* memory = reinterpret_cast<__m128i*>(digits[digit].data() + place);
    _mm_storeu_si128(memory, _mm512_cvtepi32_epi8(values));
  }

  void add(int64_t span) {
    __m512i sums[DIGITS];
    for (int digit = 0; digit < DIGITS; ++digit) {
      const __m512i values = load(digits[digit].data() + span * SPAN);
      sums[digit] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), values);
    }
    const __m512i fours = composed(sums);
    _mm512_storeu_si512(four_steps.data() + span * LANES, fours);
    for (int half = 0; half < 2; ++half) {
      const int32_t whole = _mm512_mask_reduce_add_epi32(half ? 0xff00 : 0x00ff, fours);
      group_steps[2 * span + half] = whole;
      sum[2 * span + half] = whole * step[span];
    }
  }
};

// ---- Weights of 4 bits: (level - 8) * scale + middle.

// Places of bytes of two inputs of a slab [2, 32]: the two of each output come to stand side by
// side, and in such an order that unpacking leaves the outputs in theirs.
__m512i pairing() {
  uint8_t places[64];
  for (int lane = 0; lane < 4; ++lane) {
    for (int word = 0; word < 8; ++word) {
      const int output = 4 * lane + word % 4 + (word < 4 ? 0 : 16);
      places[16 * lane + 2 * word] = output;
      places[16 * lane + 2 * word + 1] = 32 + output;
    }
  }
  return load(places);
}

struct FourBits {
  static constexpr int64_t PORTION = SLAB;  // outputs that are multiplied at once
  const uint8_t* levels;             // [N / 64, K, 32], two outputs in a byte
  const uint16_t* scale_and_middle;  // [K / 32, N, 2]
  int64_t outputs;
};

// Levels of four inputs and 64 outputs: each register has 16 outputs with their inputs in a row.
void unpack(const uint8_t* bytes, __m512i places, __m512i (&levels)[4]) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i former = _mm512_permutexvar_epi8(places, load(bytes));
  const __m512i latter = _mm512_permutexvar_epi8(places, load(bytes + 64));
  const __m512i first = _mm512_unpacklo_epi16(former, latter);
  const __m512i second = _mm512_unpackhi_epi16(former, latter);
  levels[0] = _mm512_and_si512(first, low);
  levels[1] = _mm512_and_si512(second, low);
  levels[2] = _mm512_and_si512(_mm512_srli_epi16(first, 4), low);
  levels[3] = _mm512_and_si512(_mm512_srli_epi16(second, 4), low);
}

// The outputs of a slab from `output` on, for the `COUNT` rows from `row` on.
template <int COUNT>
void multiply(
    const Rows& rows, int64_t row, const FourBits& weights, int64_t output, uint16_t* y) {
  const int64_t inputs = rows.inputs;
  const int64_t groups = inputs / GROUP;
  const uint8_t* bytes = weights.levels + output * inputs / 2;
  const __m512i places = pairing();
  __m512 totals[COUNT][4] = {};
  for (int64_t group = 0; group < groups; ++group) {
    __m512i sums[COUNT][4][DIGITS] = {};
    for (int r = 0; r < COUNT; ++r) {
      const int32_t steps = rows.group_steps[(row + r) * groups + group];
      for (int part = 0; part < 4; ++part) {
        sums[r][part][DIGITS - 1] = _mm512_set1_epi32(-8 * steps);
      }
    }
#pragma GCC unroll 8
    for (int64_t at = group * GROUP; at < (group + 1) * GROUP; at += 4) {
      __m512i levels[4];
      unpack(bytes + at * SLAB / 2, places, levels);
      _mm_prefetch(bytes + at * SLAB / 2 + AHEAD, _MM_HINT_T0);
      _mm_prefetch(bytes + at * SLAB / 2 + AHEAD + 64, _MM_HINT_T0);
      for (int r = 0; r < COUNT; ++r) {
        for (int digit = 0; digit < DIGITS; ++digit) {
          int32_t four;
          std::memcpy(&four, rows.digits[digit].data() + (row + r) * inputs + at, 4);
          for (int part = 0; part < 4; ++part) {
            __m512i& sum = sums[r][part][digit];
            sum = _mm512_dpbusd_epi32(sum, levels[part], _mm512_set1_epi32(four));
          }
        }
      }
    }
    const int64_t first = group * weights.outputs + output;
    const uint16_t* numbers = weights.scale_and_middle + 2 * first;
    for (int part = 0; part < 4; ++part) {
      const __m512i pairs = load(numbers + 2 * part * LANES);
      const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      const __m512i high = _mm512_set1_epi32(int32_t(0xffff0000));
      const __m512 middle = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
      for (int r = 0; r < COUNT; ++r) {
        const int64_t place = (row + r) * groups + group;
        const __m512 steps = _mm512_cvtepi32_ps(composed(sums[r][part]));
        const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.step[place / 2]));
        totals[r][part] = _mm512_fmadd_ps(steps, factor, totals[r][part]);
        const __m512 sum = _mm512_set1_ps(rows.sum[place]);
        totals[r][part] = _mm512_fmadd_ps(sum, middle, totals[r][part]);
      }
    }
  }
  for (int r = 0; r < COUNT; ++r) {
    for (int part = 0; part < 4; ++part) {
      uint16_t* place = y + (row + r) * weights.outputs + output + part * LANES;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), narrowed(totals[r][part]));
    }
  }
}

// ---- Weights of 8 bits: level * scale.

struct EightBits {
  static constexpr int64_t PORTION = LANES;  // outputs that are multiplied at once
  const int8_t* levels;   // [N, K]
  const uint16_t* scale;  // [N]
  int64_t outputs;
};

// Sums [COUNT, 16] over inputs of levels times rows, of `OUTPUTS` outputs from `output` on.
template <int COUNT, int OUTPUTS>
void add(const Rows& rows, int64_t row, const EightBits& weights, int64_t output, float* y) {
  const int64_t inputs = rows.inputs;
  const int64_t spans = inputs / SPAN;
  __m512 totals[COUNT][OUTPUTS] = {};
  for (int64_t span = 0; span < spans; ++span) {
    for (int o = 0; o < OUTPUTS; ++o) {
      const __m512i signed_levels = load(weights.levels + (output + o) * inputs + span * SPAN);
      // One factor of such a product has no sign: 128 is added here, and its share taken off.
      const __m512i levels = _mm512_xor_si512(signed_levels, _mm512_set1_epi8(-128));
      for (int r = 0; r < COUNT; ++r) {
        const int64_t place = (row + r) * spans + span;
        const __m512i fours = load(rows.four_steps.data() + place * LANES);
        __m512i sums[DIGITS] = {};
        sums[1] = _mm512_sub_epi32(_mm512_setzero_si512(), fours);
        for (int digit = 0; digit < DIGITS; ++digit) {
          const __m512i values = load(rows.digits[digit].data() + place * SPAN);
          sums[digit] = _mm512_dpbusd_epi32(sums[digit], levels, values);
        }
        const __m512 steps = _mm512_cvtepi32_ps(composed(sums));
        totals[r][o] = _mm512_fmadd_ps(steps, _mm512_set1_ps(rows.step[place]), totals[r][o]);
      }
    }
  }
  for (int r = 0; r < COUNT; ++r) {
    for (int o = 0; o < OUTPUTS; ++o) {
      y[r * LANES + o] = _mm512_reduce_add_ps(totals[r][o]);
    }
  }
}

// Up to 16 outputs from `output` on, for the `COUNT` rows from `row` on.
template <int COUNT>
void multiply(
    const Rows& rows, int64_t row, const EightBits& weights, int64_t output, uint16_t* y) {
  const int64_t width = std::min(weights.outputs - output, LANES);
  float sums[COUNT * LANES] = {};
  uint16_t scale[LANES] = {};
  std::copy_n(weights.scale + output, width, scale);
  int64_t o = 0;
  for (; o + 4 <= width; o += 4) {
    add<COUNT, 4>(rows, row, weights, output + o, sums + o);
  }
  for (; o < width; ++o) {
    add<COUNT, 1>(rows, row, weights, output + o, sums + o);
  }
  for (int r = 0; r < COUNT; ++r) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(sums + r * LANES), widened(scale));
    uint16_t products[LANES];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(products), narrowed(scaled));
    std::copy_n(products, width, y + (row + r) * weights.outputs + output);
  }
}

// ---- What PyTorch calls.

// All products of rows with weights, of which a thread takes some outputs.
template <typename Weights>
Tensor product(const Tensor& x, const Weights& weights) {
  const int64_t count = x.size(0);
  const Rows rows(static_cast<const uint16_t*>(x.data_ptr()), count, x.size(1));
  Tensor outputs = torch::stable::new_empty(x, {count, weights.outputs});
  auto* y = static_cast<uint16_t*>(outputs.data_ptr());
#pragma omp parallel for schedule(static)
  for (int64_t output = 0; output < weights.outputs; output += Weights::PORTION) {
    int64_t row = 0;
    for (; row + 2 <= count; row += 2) {
      multiply<2>(rows, row, weights, output, y);
    }
    for (; row < count; ++row) {
      multiply<1>(rows, row, weights, output, y);
    }
  }
  return outputs;
}

Tensor int4_product(Tensor rows, Tensor packed, Tensor scale_and_middle) {
  const auto* levels = static_cast<const uint8_t*>(packed.data_ptr());
  const auto* numbers = static_cast<const uint16_t*>(scale_and_middle.data_ptr());
  return product(rows, FourBits{levels, numbers, packed.size(0)});
}

Tensor int8_product(Tensor rows, Tensor levels, Tensor scale) {
  const auto* numbers = static_cast<const uint16_t*>(scale.data_ptr());
  const auto* weights = static_cast<const int8_t*>(levels.data_ptr());
  return product(rows, EightBits{weights, numbers, levels.size(0)});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(gistgate, CPU, library) {
  library.impl("int4_product", TORCH_BOX(&int4_product));
  library.impl("int8_product", TORCH_BOX(&int8_product));
}
