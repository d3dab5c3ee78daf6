import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadMap } from "../src/views/heads/data";
import { partsOf, stagesOf } from "../src/views/heads/why";

// Two heads that share a key head, of two dimensions; the last key is hidden from the first query.
const arrays = {
  "0/1/query": [1, 2, -1, 0.5],
  "0/0/key": [2, 1, 0, 1, 1, -1],
  "0/1/bias": [0, 0.5, 0, 0.25, 0, 0],
};
const source = { array: async (name) => Float32Array.from(arrays[name]) };
const layer = {
  heads: 2,
  kv_heads: 1,
  queries: 2,
  keys: 3,
  why: { dim: 2, scale: 0.5, softcap: 4, bias: true, sinks: [9, -1] },
};
const map = new HeadMap(layer, 1, (at) => (at === 2 ? -1 : 0.3));
const ask = (query, key, data = { layers: [layer] }, from = source) =>
  stagesOf(data, from, { layer: 0, head: 1 }, map, query, key, null);

test("a weight follows from query and key", async () => {
  const found = await ask(0, 1);
  assert.deepEqual([found.query, found.key, found.score, found.scaled], [[1, 2], [0, 1], 2, 1]);
  const capped = (scaled) => 4 * Math.tanh(scaled / 4);
  assert.equal(found.capped, capped(1));
  assert.deepEqual([found.scale, found.bias], [0.5, 0.5]);
  assert.equal(found.masked, capped(1) + 0.5);
  const total = Math.log(Math.exp(capped(2)) + Math.exp(capped(1) + 0.5) + Math.exp(-1));
  assert.ok(Math.abs(found.logsumexp - total) < 1e-12);
  assert.ok(Math.abs(found.weight - Math.exp(found.masked - total)) < 1e-12);
  const hidden = await ask(0, 2);
  assert.deepEqual([hidden.masked, hidden.weight], [null, 0]);
  assert.deepEqual(partsOf(found), [
    { at: 1, by: 2 },
    { at: 0, by: 0 },
  ]);
});

test("a step that the layer does not have is left out", async () => {
  const why = { ...layer.why, softcap: null, bias: false };
  const found = await ask(0, 1, { layers: [{ ...layer, why }] });
  assert.deepEqual(["capped" in found, "bias" in found], [false, false]);
  assert.equal(found.masked, found.scaled);
});

test("what is no number comes first, and the rest in order", () => {
  const found = partsOf({ query: [1, NaN, 3, null, -5], key: [1, 1, 1, 1, 1] });
  assert.deepEqual(
    found.map(({ at }) => at),
    [1, 3, 4, 2, 0],
  );
});

test("what the page does not have is asked for, where there is somebody to ask", async () => {
  const data = { layers: [{ ...layer, why: undefined }] };
  assert.equal(await ask(0, 1, data), null);
  const server = { pair: async (...asked) => asked.slice(0, 4) };
  assert.deepEqual(await ask(1, 2, data, server), [0, 1, 1, 2]);
});
