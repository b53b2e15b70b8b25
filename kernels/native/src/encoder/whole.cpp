#include "encoder/whole.h"

#include <algorithm>
#include <vector>

#include "vectors/memory.h"
#include "vectors/tile.h"

namespace baton {
namespace {

// Keys whose values stay in the first-level cache while all rows of a task read them.
constexpr int kKeysAtOnce = 128;
constexpr float kUnseen = -1e30f;

const uint32_t* words(const float* numbers) { return reinterpret_cast<const uint32_t*>(numbers); }

// sums[row][kPanelVectors] (+)= rows times a panel.
void multiply_all(int rows, const float* from, size_t stride, const float* panel, int count, Floats* sums,
                  bool first) {
  for_row_groups(rows, [&](int row, int n) {
    multiply_rows<Float32Dot, 0>(n, words(from) + row * stride, stride, words(panel), count,
                                 sums + row * kPanelVectors, first);
  });
}

// What threads read together, and what each has of its own. It is kept from call to call.
struct Memory {
  Buffer<float> keys, values;
  std::vector<Buffer<float>> own;
};

class Whole {
 public:
  Whole(const Texts& texts, Memory& memory) : t_(texts), memory_(memory) {
    size_t keys = 0, values = 0;
    int64_t token = 0;
    for (int text = 0; text < t_.count; ++text) {
      const int length = t_.lengths[text];
      places_.push_back({token, keys, values, num_tasks_});
      token += length;
      keys += size_t(t_.kv_heads) * key_floats(length);
      values += size_t(t_.kv_heads) * value_floats(length);
      num_tasks_ += t_.heads * blocks(length);
      longest_ = std::max(longest_, length);
    }
    memory_.keys.reserve(keys);
    memory_.values.reserve(values);
  }

  int num_packs() const { return t_.count * t_.kv_heads; }
  int num_tasks() const { return num_tasks_; }
  // Floats that a thread needs of its own: queries, and scores of a block of them.
  size_t own_floats() const {
    return size_t(kTaskRows) * (size_t(t_.head_dim) + size_t(panels_of(longest_)) * kPanel);
  }

  // Brings keys into panels of keys, and values into panels of their numbers.
  void pack(int task) {
    const int text = task / t_.kv_heads, head = task % t_.kv_heads, length = t_.lengths[text];
    const Place& at = places_[text];
    float* keys = memory_.keys.data() + at.keys + head * key_floats(length);
    float* values = memory_.values.data() + at.values + head * value_floats(length);
    const int dim = t_.head_dim;
    for (int key = 0; key < panels_of(length) * kPanel; ++key) {
      float* to = keys + size_t(key / kPanel) * dim * kPanel + key % kPanel;
      const float* from = t_.keys + (at.token + key) * t_.key_stride + head * dim;
      for (int d = 0; d < dim; ++d) to[size_t(d) * kPanel] = key < length ? from[d] : 0.0f;
    }
    for (int panel = 0; panel < panels_of(dim); ++panel) {
      const int columns = std::min(kPanel, dim - panel * kPanel);
      for (int key = 0; key < length; ++key) {
        const float* from = t_.values + (at.token + key) * t_.value_stride + head * dim + panel * kPanel;
        float* to = values + (size_t(panel) * length + key) * kPanel;
        std::copy_n(from, columns, to);
        std::fill(to + columns, to + kPanel, 0.0f);
      }
    }
  }

  // Computes a block of queries of one head.
  void attend(int task, float* own) const {
    auto behind = std::upper_bound(places_.begin(), places_.end(), task,
                                   [](int wanted, const Place& place) { return wanted < place.task; });
    const Place& at = *(behind - 1);
    const int length = t_.lengths[&at - places_.data()], dim = t_.head_dim;
    const int head = (task - at.task) / blocks(length), block = (task - at.task) % blocks(length);
    const int first = int(int64_t(length) * block / blocks(length));
    const int count = int(int64_t(length) * (block + 1) / blocks(length)) - first;
    const int kv_head = head / (t_.heads / t_.kv_heads);
    const int reach = t_.window > 0 ? std::min(t_.window, length) : length;
    const int low = std::max(0, first - reach + 1) / kPanel;
    const int high = panels_of(std::min(length, first + count - 1 + reach));
    const int width = (high - low) * kPanel, seen = std::min(width, length - low * kPanel);

    float *queries = own, *scores = own + size_t(kTaskRows) * dim;
    for (int row = 0; row < count; ++row) {
      const float* from = t_.queries + (at.token + first + row) * t_.query_stride + head * dim;
      for (int d = 0; d < dim; ++d) queries[row * dim + d] = from[d] * (t_.scale * kLog2E);
    }
    alignas(64) Floats sums[kTaskRows * kPanelVectors];
    const float* keys = memory_.keys.data() + at.keys + kv_head * key_floats(length);
    for (int panel = low; panel < high; ++panel) {
      multiply_all(count, queries, dim, keys + size_t(panel) * dim * kPanel, dim, sums, true);
      for (int row = 0; row < count; ++row)
        for (int v = 0; v < kPanelVectors; ++v)
          store(scores + size_t(row) * width + (panel - low) * kPanel + v * kLanes,
                sums[row * kPanelVectors + v]);
    }
    float totals[kTaskRows];
    for (int row = 0; row < count; ++row) {
      const int query = first + row - low * kPanel;
      const int from = std::max(0, query - reach + 1), end = std::min(seen, query + reach);
      totals[row] = weigh(scores + size_t(row) * width, from, end, width);
    }
    const float* values = memory_.values.data() + at.values + kv_head * value_floats(length);
    for (int panel = 0; panel < panels_of(dim); ++panel) {
      const float* own_values = values + (size_t(panel) * length + low * kPanel) * kPanel;
      for (int key = 0; key < seen; key += kKeysAtOnce)
        multiply_all(count, scores + key, width, own_values + size_t(key) * kPanel,
                     std::min(kKeysAtOnce, seen - key), sums, key == 0);
      const int columns = std::min(kPanel, dim - panel * kPanel);
      for (int row = 0; row < count; ++row) {
        alignas(64) float numbers[kPanel];
        for (int v = 0; v < kPanelVectors; ++v)
          store(numbers + v * kLanes, sums[row * kPanelVectors + v] / totals[row]);
        float* to = t_.out + ((at.token + first + row) * t_.heads + head) * dim + panel * kPanel;
        std::copy_n(numbers, columns, to);
      }
    }
  }

 private:
  struct Place {
    int64_t token;
    size_t keys, values;
    int task;  // the first of the text's
  };

  // Makes weights of scores, 0 outside [from, end); returns their sum.
  static float weigh(float* scores, int from, int end, int width) {
    std::fill(scores, scores + from, kUnseen);
    std::fill(scores + end, scores + width, kUnseen);
    Floats largest = splat(kUnseen);
    for (int i = 0; i < width; i += kLanes) largest = max(largest, load<Floats>(scores + i));
    const Floats most = splat(max_lane(largest));
    Floats total = {};
    for (int i = 0; i < width; i += kLanes) {
      const Floats weight = exp2(load<Floats>(scores + i) - most);
      total += weight;
      store(scores + i, weight);
    }
    return sum(total);
  }

  static int blocks(int length) { return (length + kTaskRows - 1) / kTaskRows; }
  size_t key_floats(int length) const { return size_t(panels_of(length)) * kPanel * t_.head_dim; }
  size_t value_floats(int length) const { return size_t(panels_of(t_.head_dim)) * kPanel * length; }

  const Texts& t_;
  Memory& memory_;
  std::vector<Place> places_;
  int num_tasks_ = 0, longest_ = 0;
};

}  // namespace

void attend_whole(Pool& pool, const Texts& texts) {
  static thread_local Memory memory;
  Whole whole(texts, memory);
  if (memory.own.size() < size_t(pool.num_threads())) memory.own.resize(pool.num_threads());
  for (auto& own : memory.own) own.reserve(whole.own_floats());
  pool.run(whole.num_packs(), [&](int task, int) { whole.pack(task); });
  Memory* shared = &memory;
  pool.run(whole.num_tasks(),
           [&, shared](int task, int thread) { whole.attend(task, shared->own[thread].data()); });
}

}  // namespace baton
