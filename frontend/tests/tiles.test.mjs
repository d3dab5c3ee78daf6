import assert from "node:assert/strict";
import { test } from "node:test";
import { endOf, HeadMap, halfStep, strongest, table } from "../src/views/heads/data";
import { headsTile } from "../src/views/heads/tiles";

const LEVELS = 254;

/** A source of one head with all of its weights: numbers, row by row; below 0 is hidden. */
function short(weights, queries, keys) {
  const top = Math.max(...weights);
  const codes = Uint8Array.from(weights, (weight) =>
    weight < 0 ? 0 : 1 + Math.round(LEVELS * Math.sqrt(weight / top)),
  );
  const layer = {
    heads: 1,
    kv_heads: 1,
    queries,
    keys,
    weights: { levels: LEVELS, power: 2, top: [top], shape: [queries, keys] },
  };
  return source(layer, { "0/0/weights": codes });
}

function source(layer, arrays) {
  return {
    head: async () => ({ kind: "heads", data: { layers: [layer] } }),
    array: async (name) => arrays[name],
  };
}

function ask(rows, columns, cells) {
  return { layer: 0, head: 0, rows, columns, cells };
}

function near(found, expected, tolerance = 5e-3) {
  assert.equal(found.length, expected.length);
  for (const [at, value] of expected.entries()) {
    assert.ok(Math.abs(found[at] - value) <= tolerance, `${found[at]} is not ${value} at ${at}`);
  }
}

test("a tile of single tokens is the weights", async () => {
  const weights = [1, -1, -1, 0.25, 0.75, -1, 0.5, 0.25, 0.25];
  const tile = await headsTile(short(weights, 3, 3), ask([0, 3], [0, 3], [30, 30]));
  assert.deepEqual(
    [tile.rows, tile.columns, tile.cells],
    [
      [0, 3],
      [0, 3],
      [3, 3],
    ],
  );
  assert.deepEqual([tile.grain, tile.links], [[1, 1], 0]);
  assert.ok(Math.abs(tile.top - 0.75) < 5e-3);
  near([...tile.values], weights);
});

test("a cell has the mean of its queries and the sum of its keys", async () => {
  const [queries, keys] = [5, 7];
  const weights = Array.from({ length: queries * keys }, (_, at) =>
    at % keys > Math.floor(at / keys) + 2 ? -1 : ((at * 13) % 11) / 11,
  );
  const tile = await headsTile(short(weights, queries, keys), ask([0, 5], [0, 7], [3, 3]));
  assert.deepEqual(tile.cells, [3, 3]);
  const expected = [];
  for (let row = 0; row < 5; row += 2) {
    for (let column = 0; column < 7; column += 3) {
      const rows = [row, row + 1].filter((at) => at < queries);
      const inside = rows.flatMap((query) =>
        [column, column + 1, column + 2]
          .filter((key) => key < keys)
          .map((key) => weights[query * keys + key]),
      );
      const seen = inside.filter((weight) => weight >= 0);
      expected.push(seen.length ? seen.reduce((a, b) => a + b, 0) / rows.length : -1);
    }
  }
  near([...tile.values], expected, 2e-2);
  // The first row of cells does not set the end of the colours.
  assert.ok(Math.abs(tile.top - Math.max(...expected.slice(3))) < 2e-2);
});

test("cells begin at multiples of their size, wherever the view begins", async () => {
  const weights = Array.from({ length: 100 }, (_, at) => at / 100);
  const from = short(weights, 10, 10);
  const whole = await headsTile(from, ask([0, 10], [0, 10], [5, 5]));
  const part = await headsTile(from, ask([3, 9], [1, 7], [3, 3]));
  assert.deepEqual(
    [part.rows, part.columns],
    [
      [2, 10],
      [0, 8],
    ],
  );
  for (let row = 0; row < part.cells[0]; row++) {
    for (let column = 0; column < part.cells[1]; column++) {
      const same = whole.values[(row + 1) * whole.cells[1] + column];
      assert.equal(part.values[row * part.cells[1] + column], same);
    }
  }
});

test("a long text is its map, and finer than that its links where they are", async () => {
  const [queries, keys] = [8, 8];
  const pooled = { levels: LEVELS, power: 1, top: [1], shape: [2, 2] };
  const links = { levels: LEVELS, power: 1, top: [[0.5]], count: 1, planes: 1 };
  const layer = { heads: 1, kv_heads: 1, queries, keys, pooled, links };
  const full = (share) => 1 + Math.round(LEVELS * share);
  // Every query looks at itself with 0.5; what it gives to its own half is in the map alone.
  const from = source(layer, {
    "0/0/pooled": Uint8Array.from([1, 0, 0, 1], full),
    "0/0/back0": new Uint8Array(queries),
    "0/0/link0": new Uint8Array(queries).fill(LEVELS + 1),
  });
  const coarse = await headsTile(from, ask([0, 8], [0, 8], [2, 2]));
  assert.deepEqual([coarse.links, coarse.grain], [0, [4, 4]]);
  near([...coarse.values], [1, 0, 0, 1]);
  const fine = await headsTile(from, ask([0, 8], [0, 8], [8, 8]));
  assert.deepEqual([fine.links, fine.grain], [1, [4, 4]]);
  const expected = Array.from({ length: 64 }, (_, at) => {
    return Math.floor(at / 8) === at % 8 ? 0.5 : 0;
  });
  near([...fine.values], expected);
});

test("finer than the map what a query may not see is hidden, and a cell has all of its links", async () => {
  const [queries, keys] = [8, 8];
  const layer = {
    heads: 1,
    kv_heads: 1,
    queries,
    keys,
    pooled: { levels: LEVELS, power: 1, top: [1], shape: [2, 2] },
    links: { levels: LEVELS, power: 1, top: [[0.5]], count: 1, planes: 1 },
    spans: { pieces: 1 },
  };
  // Causal: every query looks at itself with 0.5.
  const shares = [1, -1, 0.25, 0.75];
  const from = source(layer, {
    "0/spans": Int32Array.from([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
    "0/0/pooled": Uint8Array.from(shares, (share) =>
      share < 0 ? 0 : 1 + Math.round(LEVELS * share),
    ),
    "0/0/back0": new Uint8Array(queries),
    "0/0/link0": new Uint8Array(queries).fill(LEVELS + 1),
  });
  const coarse = await headsTile(from, ask([0, 8], [0, 8], [2, 2]));
  near([...coarse.values], shares);
  for (const size of [8, 4]) {
    const fine = await headsTile(from, ask([0, 8], [0, 8], [8, size]));
    assert.deepEqual(fine.cells, [8, size]);
    for (const [at, value] of fine.values.entries()) {
      const [query, key] = [Math.floor(at / size), ((at % size) * 8) / size];
      assert.equal(value === -1, key > query, `${query} → ${key}: ${value}`);
      const has = key <= query && query < key + 8 / size;
      assert.ok(
        Math.abs(Math.max(0, value) - (has ? 0.5 : 0)) < 5e-3,
        `${query} → ${key}: ${value}`,
      );
    }
  }
  const map = await HeadMap.read(from, 0, layer, 0);
  assert.equal(map.weight(2, 3), -1);
});

test("links are in order, though each rank is rounded by itself", async () => {
  const layer = {
    heads: 1,
    kv_heads: 1,
    queries: 1,
    keys: 4,
    links: { levels: 10, power: 1, top: [[0.5], [0.46]], count: 2, planes: 1 },
  };
  const from = source(layer, {
    "0/0/back0": Uint8Array.of(2),
    "0/0/link0": Uint8Array.of(9), // 0.40
    "0/0/back1": Uint8Array.of(4),
    "0/0/link1": Uint8Array.of(10), // 0.414
  });
  const map = await HeadMap.read(from, 0, layer, 0);
  const weights = map.looksAt(0, 2).map((link) => link.weight);
  assert.equal(weights.length, 2);
  assert.ok(weights[0] >= weights[1]);
});

test("colours end at what nearly all queries are below, the first one not asked", () => {
  const largest = (row) => (row === 0 ? 1 : row === 7 ? 0.9 : 0.1 + row / 10_000);
  assert.ok(endOf(1000, largest) < 0.21);
  assert.equal(endOf(1, largest), 1);
  assert.equal(endOf(9, largest), 0.9);
});

test("a layer that is not there has no tile", async () => {
  const request = { ...ask([0, 1], [0, 1], [1, 1]), layer: 1 };
  assert.equal(await headsTile(short([1], 1, 1), request), null);
});

test("a restored number is within half a step of the true one", () => {
  for (const power of [1, 2, 3]) {
    const about = { levels: 45, power };
    const values = table(about, 0.9);
    assert.equal(values[0], -1);
    assert.ok(Number.isNaN(values[47]));
    for (let value = 0; value <= 0.9; value += 0.0007) {
      const code = 1 + Math.round(45 * (value / 0.9) ** (1 / power));
      assert.ok(Math.abs(values[code] - value) <= halfStep(values[code], about, 0.9) + 1e-6);
    }
  }
});

test("the strongest come first, and of equal ones the earlier", () => {
  const values = [0.2, 0, 0.7, 0.2, Number.NaN, 0.9, -1];
  const found = (count) => strongest(count, values.length, (at) => values[at]);
  assert.deepEqual(found(3), [
    [5, 0.9],
    [2, 0.7],
    [0, 0.2],
  ]);
  assert.deepEqual(
    found(9).map(([at]) => at),
    [5, 2, 0, 3],
  );
});

test("weights of 16 bits are those of their formula", async () => {
  const weights = { levels: 65533, power: 2, top: [0.5], shape: [1, 4] };
  const layer = { heads: 1, kv_heads: 1, queries: 1, keys: 4, weights };
  const source = { array: async () => Uint16Array.from([0, 1, 65534, 65535]) };
  const map = await HeadMap.read(source, 0, layer, 0);
  assert.deepEqual([0, 1, 2, 3].map(map.at), [-1, 0, 0.5, NaN]);
  assert.ok(map.error(0.5) < 2e-5);
});
