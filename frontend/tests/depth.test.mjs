import assert from "node:assert/strict";
import { test } from "node:test";
import { depthOf, strip, stripTile } from "../src/views/heads/depth";

const side = { text: 0, first: 0 };
const layer = {
  run: 0,
  queries: 3,
  keys: 3,
  query: side,
  key: side,
  rows: [{}],
  weights: { exact: true, shape: [3, 3] },
};
// What clearhead.rollout gives for two causal layers whose queries look at all alike.
const EVEN = [1, -1, -1, 1 / 2, 1 / 2, -1, 1 / 3, 1 / 3, 1 / 3];
const data = { layers: [layer, { ...layer, run: 1 }, layer, { ...layer, keys: 2 }], texts: [[]] };
const source = { array: async () => Float32Array.from(EVEN) };

test("a token through the layers ends in its rollout", async () => {
  const places = depthOf(data, layer);
  assert.deepEqual(places, [0, 2]);
  const rows = await strip(data, source, places, 2);
  assert.equal(rows.length, 3);
  const near = (found, expected) =>
    assert.ok(
      expected.every((each, at) => Math.abs(found[at] - each) < 1e-4),
      String(found),
    );
  near(rows[0], [1 / 3, 1 / 3, 1 / 3]);
  near(rows[2], [0.3194, 0.2361, 0.4444]);
  const request = { layer: 0, head: 0, rows: [0, 3], columns: [0, 3], cells: [90, 2] };
  const tile = stripTile(rows, request);
  assert.deepEqual(
    [tile.cells, tile.rows, tile.columns],
    [
      [3, 2],
      [0, 3],
      [0, 4],
    ],
  );
  near(tile.values, [2 / 3, 1 / 3, 2 / 3, 1 / 3, 0.5556, 0.4444]);
});

test("there is no rollout of one layer, or between two texts", () => {
  assert.deepEqual(depthOf({ layers: [layer] }, layer), []);
  const cross = { ...layer, query: { text: 1, first: 0 } };
  assert.deepEqual(depthOf({ layers: [cross, cross] }, cross), []);
});
