// The transforms of Winograd's minimal filtering, one dimension at a time (Lavin and Gray 2016).
//
// F(m, T) makes m neighbouring outputs of a filter of T taps with m + T - 1 products:
//     y = Aᵀ [(G g) ⊙ (Bᵀ d)]        d: m + T - 1 inputs, g: the taps
// The matrices are those of the points 0, 1, -1, ∞ for F(2, 3) and 0, 1, -1, 2, -2, ∞ for F(4, 3) and
// F(2, 5). A second application to the other dimension gives F(m×m, T×T). The gradients are the
// transposed maps.
//
// Each function reads elements that lie `from` apart and writes elements that lie `to` apart.
// Included by passes.h only, once per kind of vector.

struct F2x3 {
  static constexpr int kOut = 2, kTaps = 3, kPoints = 4;

  static void input(const Vec* d, int from, Vec* v, int to) {  // Bᵀ d
    const Vec d1 = d[from], d2 = d[2 * from];
    v[0] = d[0] - d2;
    v[to] = d1 + d2;
    v[2 * to] = d2 - d1;
    v[3 * to] = d1 - d[3 * from];
  }
  static void input_transposed(const Vec* v, int from, Vec* d, int to) {  // B v
    const Vec v0 = v[0], v1 = v[from], v2 = v[2 * from], v3 = v[3 * from];
    d[0] = v0;
    d[to] = v1 - v2 + v3;
    d[2 * to] = v1 + v2 - v0;
    d[3 * to] = -v3;
  }
  static void output(const Vec* m, int from, Vec* y, int to) {  // Aᵀ m
    const Vec m1 = m[from], m2 = m[2 * from];
    y[0] = m[0] + (m1 + m2);
    y[to] = (m1 - m2) - m[3 * from];
  }
  static void output_transposed(const Vec* y, int from, Vec* m, int to) {  // A y
    const Vec y0 = y[0], y1 = y[from];
    m[0] = y0;
    m[to] = y0 + y1;
    m[2 * to] = y0 - y1;
    m[3 * to] = -y1;
  }
  static void taps(const Vec* g, int from, Vec* u, int to) {  // G g
    const Vec even = (g[0] + g[2 * from]) * 0.5f, odd = g[from] * 0.5f;
    u[0] = g[0];
    u[to] = even + odd;
    u[2 * to] = even - odd;
    u[3 * to] = g[2 * from];
  }
  static void taps_transposed(const Vec* u, int from, Vec* g, int to) {  // Gᵀ u
    const Vec u1 = u[from], u2 = u[2 * from];
    const Vec even = (u1 + u2) * 0.5f;
    g[0] = u[0] + even;
    g[to] = (u1 - u2) * 0.5f;
    g[2 * to] = even + u[3 * from];
  }
};

struct SixPoints {  // what F(4, 3) and F(2, 5) share
  static constexpr int kPoints = 6;

  static void input(const Vec* d, int from, Vec* v, int to) {
    const Vec d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from], d4 = d[4 * from],
              d5 = d[5 * from];
    const Vec a = d4 - 4.0f * d2, b = d3 - 4.0f * d1, c = d4 - d2, e = 2.0f * (d3 - d1);
    v[0] = 4.0f * d0 - 5.0f * d2 + d4;
    v[to] = a + b;
    v[2 * to] = a - b;
    v[3 * to] = c + e;
    v[4 * to] = c - e;
    v[5 * to] = 4.0f * d1 - 5.0f * d3 + d5;
  }
  static void input_transposed(const Vec* v, int from, Vec* d, int to) {
    const Vec v0 = v[0], v1 = v[from], v2 = v[2 * from], v3 = v[3 * from], v4 = v[4 * from],
              v5 = v[5 * from];
    const Vec a = v1 + v2, b = v1 - v2, c = v3 + v4, e = 2.0f * (v3 - v4);
    d[0] = 4.0f * v0;
    d[to] = 4.0f * (v5 - b) - e;
    d[2 * to] = -5.0f * v0 - 4.0f * a - c;
    d[3 * to] = b + e - 5.0f * v5;
    d[4 * to] = v0 + a + c;
    d[5 * to] = v5;
  }
};

struct F4x3 : SixPoints {
  static constexpr int kOut = 4, kTaps = 3;

  static void output(const Vec* m, int from, Vec* y, int to) {
    const Vec m1 = m[from], m2 = m[2 * from], m3 = m[3 * from], m4 = m[4 * from];
    const Vec a = m1 + m2, b = m1 - m2, c = m3 + m4, e = m3 - m4;
    y[0] = m[0] + a + c;
    y[to] = b + 2.0f * e;
    y[2 * to] = a + 4.0f * c;
    y[3 * to] = b + 8.0f * e + m[5 * from];
  }
  static void output_transposed(const Vec* y, int from, Vec* m, int to) {
    const Vec y0 = y[0], y1 = y[from], y2 = y[2 * from], y3 = y[3 * from];
    const Vec a = y0 + y2, b = y1 + y3, c = y0 + 4.0f * y2, e = 2.0f * y1 + 8.0f * y3;
    m[0] = y0;
    m[to] = a + b;
    m[2 * to] = a - b;
    m[3 * to] = c + e;
    m[4 * to] = c - e;
    m[5 * to] = y3;
  }
  static void taps(const Vec* g, int from, Vec* u, int to) {
    const Vec g0 = g[0], g1 = g[from], g2 = g[2 * from];
    const Vec a = (g0 + g2) * (-1.0f / 6), b = g1 * (-1.0f / 6);
    const Vec c = g0 * (1.0f / 24) + g2 * (1.0f / 6), e = g1 * (1.0f / 12);
    u[0] = 0.25f * g0;
    u[to] = a + b;
    u[2 * to] = a - b;
    u[3 * to] = c + e;
    u[4 * to] = c - e;
    u[5 * to] = g2;
  }
  static void taps_transposed(const Vec* u, int from, Vec* g, int to) {
    const Vec u1 = u[from], u2 = u[2 * from], u3 = u[3 * from], u4 = u[4 * from];
    const Vec a = (u1 + u2) * (-1.0f / 6), c = u3 + u4;
    g[0] = 0.25f * u[0] + a + c * (1.0f / 24);
    g[to] = (u1 - u2) * (-1.0f / 6) + (u3 - u4) * (1.0f / 12);
    g[2 * to] = a + c * (1.0f / 6) + u[5 * from];
  }
};

struct F2x5 : SixPoints {
  static constexpr int kOut = 2, kTaps = 5;

  static void output(const Vec* m, int from, Vec* y, int to) {
    const Vec m1 = m[from], m2 = m[2 * from], m3 = m[3 * from], m4 = m[4 * from];
    y[0] = m[0] + (m1 + m2) + (m3 + m4);
    y[to] = (m1 - m2) + 2.0f * (m3 - m4) + m[5 * from];
  }
  static void output_transposed(const Vec* y, int from, Vec* m, int to) {
    const Vec y0 = y[0], y1 = y[from], twice = 2.0f * y1;
    m[0] = y0;
    m[to] = y0 + y1;
    m[2 * to] = y0 - y1;
    m[3 * to] = y0 + twice;
    m[4 * to] = y0 - twice;
    m[5 * to] = y1;
  }
  static void taps(const Vec* g, int from, Vec* u, int to) {
    const Vec g0 = g[0], g1 = g[from], g2 = g[2 * from], g3 = g[3 * from], g4 = g[4 * from];
    const Vec a = (g0 + g2 + g4) * (-1.0f / 6), b = (g1 + g3) * (-1.0f / 6);
    const Vec c = (g0 + 4.0f * g2 + 16.0f * g4) * (1.0f / 24), e = (g1 + 4.0f * g3) * (1.0f / 12);
    u[0] = 0.25f * g0;
    u[to] = a + b;
    u[2 * to] = a - b;
    u[3 * to] = c + e;
    u[4 * to] = c - e;
    u[5 * to] = g4;
  }
  static void taps_transposed(const Vec* u, int from, Vec* g, int to) {
    const Vec u1 = u[from], u2 = u[2 * from], u3 = u[3 * from], u4 = u[4 * from];
    const Vec a = (u1 + u2) * (-1.0f / 6), b = (u1 - u2) * (-1.0f / 6);
    const Vec c = (u3 + u4) * (1.0f / 24), e = (u3 - u4) * (1.0f / 12);
    g[0] = 0.25f * u[0] + a + c;
    g[to] = b + e;
    g[2 * to] = a + 4.0f * c;
    g[3 * to] = b + 4.0f * e;
    g[4 * to] = a + 16.0f * c + u[5 * from];
  }
};
