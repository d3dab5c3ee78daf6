import assert from "node:assert/strict";
import { test } from "node:test";
import { whole } from "../src/shared/map";
import { answerOf, askHeads, questionOf } from "../src/views/heads/ask";
import { HeadMap } from "../src/views/heads/data";
import { readState, writeState } from "../src/views/heads/state";

function layer(number, more = {}) {
  const weights = { exact: true, shape: [3, 3] };
  const text = { text: 0, first: 0 };
  const rows = [{}, {}];
  return { number, run: 0, queries: 3, keys: 3, query: text, key: text, rows, weights, ...more };
}

const data = {
  runs: [""],
  roles: { all: ["previous", "first"], matching: [] },
  texts: [["a", "b", "c"]],
  layers: [layer(4), layer(5, { head_numbers: [7, 11] })],
};
const START = { layer: 0, head: 0 };

test("a state that was written is read as it was", () => {
  const states = [
    {
      head: { layer: 1, head: 1 },
      with: { layer: 0, head: 0 },
      pin: { query: 2, key: 0 },
      view: { row: 0.5, rows: 2, column: 0, columns: 2.25 },
      scale: "log",
      theme: "dark",
      order: "link",
      without: ["first", "punctuation"],
      least: 0.0625,
      heads: [],
      minus: true,
      why: true,
      writes: true,
      embed: true,
    },
    {
      ...readState("", data, START),
      heads: [
        { layer: 1, head: 1 },
        { layer: 0, head: 0 },
      ],
    },
    {
      ...readState("", data, START),
      pin: { query: null, key: 1 },
    },
    { ...readState("", data, START), pin: { query: 1, key: 1, token: true } },
  ];
  for (const state of states) {
    assert.deepEqual(readState(writeState(state, data), data, START), state);
  }
  assert.match(writeState(states[0], data), /^head=5\.11&with=4\.0&pin=2,0&view=0\.5,2,0,2\.25&/);
  assert.equal(writeState(readState("", data, START), data), "head=4.0");
});

test("a layer stands for all of its heads", () => {
  const heads = [
    { layer: 1, head: 0 },
    { layer: 1, head: 1 },
  ];
  const state = { ...readState("", data, START), heads };
  assert.match(writeState(state, data), /&heads=5$/);
  assert.deepEqual(readState("heads=5", data, START).heads, heads);
  assert.equal(readState("heads=5&with=5.7&minus=1", data, START).with, null);
  // Of other texts there is no mean.
  const other = layer(6, { key: { text: null, first: 0 } });
  const more = { ...data, layers: [...data.layers, other] };
  assert.deepEqual(readState("heads=4.0,6.0", more, START).heads, []);
});

test("what an address makes up is left out, and named", () => {
  for (const text of [
    "head=9.9&with=x&pin=7,8&view=1,2,3&scale=loud&theme=<b>&order=rank&without=all&least=2&heads=9,4.0&minus=1",
    "pin=,&view=0,9,0,9",
    "pin=-1&view=NaN,1,1,1",
    "with=4.0",
    "pin=3",
    "pin=1,3",
    "without=first,sinks",
    "heads=4.0,4.0",
    "colour=red",
    "%%%",
  ]) {
    const missing = [];
    const found = readState(text, data, START, missing);
    const every = [...new URLSearchParams(text)].map(([name, value]) =>
      [name, value].filter(Boolean),
    );
    assert.deepEqual(missing.sort(), every.map((each) => each.join("=")).sort());
    assert.deepEqual(found.head, START);
    assert.equal(found.with, null);
    assert.deepEqual([found.pin.query, found.pin.key], [null, null]);
    assert.deepEqual([found.view, found.scale, found.order], [whole(3, 3), "root", "model"]);
    assert.deepEqual([found.without, found.least], [[], 0]);
    assert.deepEqual(found.heads, []);
    assert.equal(found.minus, false);
  }
});

test("what an address says once and rightly is not named", () => {
  const missing = [];
  const text = "head=A4.1&with=5.11&view=0,3,0,3&scale=root&least=0&why=1";
  const state = readState(text, data, START, missing);
  assert.deepEqual([missing, state.head], [[], { layer: 0, head: 1 }]);
  assert.equal(readState("pin=1,2&pin=0,0", data, START, missing).pin.key, 2);
  assert.deepEqual(missing, ["pin=0,0"]);
});

test("what is pinned is a question to every head", async () => {
  const held = {
    "0/0/weights": [1, -1, -1, 0.25, 0.75, -1, 0.5, 0.2, 0.3],
    "0/1/weights": [1, -1, -1, 0.5, 0.5, -1, 0.1, 0.6, 0.3],
    "1/0/weights": [1, -1, -1, 0.9, 0.1, -1, 0.2, 0.2, 0.6],
    "1/1/weights": [1, -1, -1, 0.6, 0.4, -1, 0.3, 0.4, 0.3],
  };
  const source = { array: async (name) => Float32Array.from(held[name]) };
  const ask = async (question) =>
    (await askHeads(data, source, data.layers[0], question)).map(({ layer, head, link }) => [
      `${layer}/${head}`,
      link.query,
      link.key,
      Number(link.weight.toFixed(3)),
    ]);
  assert.deepEqual(await ask({ query: 2, key: 1 }), [
    ["0/1", 2, 1, 0.6],
    ["1/1", 2, 1, 0.4],
    ["0/0", 2, 1, 0.2],
    ["1/0", 2, 1, 0.2],
  ]);
  assert.deepEqual((await ask({ query: 2, key: null }))[0], ["0/1", 2, 1, 0.6]);
  assert.deepEqual((await ask({ query: null, key: 1 }))[0], ["0/0", 1, 1, 0.75]);
  // What a mask hides no head answers.
  assert.deepEqual(await ask({ query: 0, key: 2 }), []);
  const map = new HeadMap(data.layers[0], 0, (at) => held["0/0/weights"][at]);
  assert.equal(answerOf(map, { query: 2, key: 0 }).weight, 0.5);
  assert.deepEqual(questionOf({ query: 1, key: 1, token: true }), { query: 1, key: null });
  assert.equal(questionOf({ query: null, key: null }), null);
});
