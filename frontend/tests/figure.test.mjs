import assert from "node:assert/strict";
import { test } from "node:test";
import { entropy, matrix, placesOfHeads, stages } from "../src/figure/core";
import {
  compute,
  maskNamed,
  read,
  reduce,
  START,
  scaleOf,
  stepped,
  typed,
  withPair,
  write,
} from "../src/figure/model";
import { beside, foot, hull, reach, turned } from "../src/figure/plane";

const of = (rows) => matrix(rows.length, rows[0].length, (row, column) => rows[row][column]);
const numbers = (rows) => ({
  rows: rows.length,
  columns: rows[0].length,
  single: false,
  numbers: rows.flat(),
});
const row = (stage, at) =>
  Array.from({ length: stage.columns }, (_, column) => stage.at(at, column));
const near = (found, expected) =>
  found.forEach((each, at) => {
    assert.ok(Math.abs(each - expected[at]) < 1e-12, `${found} is not ${expected}`);
  });

function data(change = {}) {
  return {
    title: "",
    tokens: ["a", "b"],
    source_tokens: ["a", "b"],
    inputs: {
      query: numbers([
        [1, 0],
        [0, 2],
      ]),
      key: numbers([
        [1, 1],
        [0, 1],
      ]),
      value: numbers([
        [1, 2],
        [3, 4],
      ]),
    },
    scale: 0.5,
    softcap: null,
    mask: null,
    bias: null,
    show: ["query", "scores", "weights", "context"],
    edit: ["query", "scores", "mask", "scale"],
    predict: ["weights", 1, 0],
    ...change,
  };
}

test("the stages follow each other", () => {
  const eye = of([
    [1, 0],
    [0, 1],
  ]);
  const found = stages(eye, eye, eye, { scale: 1 });
  assert.deepEqual(
    [...found.keys()],
    "scores scaled_scores capped_scores masked_scores weights dropped_weights context".split(" "),
  );
  const share = Math.E / (Math.E + 1);
  near(row(found.get("context"), 0), [share, 1 - share]);
  assert.equal(found.get("scaled_scores").sameAs, "scores");
});

test("a query that sees nothing gets 0, and one number that is none stays where it is hidden", () => {
  const query = of([
    [1, 0],
    [0, 1],
  ]);
  const value = of([
    [1, 2],
    [Number.NaN, 3],
  ]);
  const found = stages(query, query, value, { scale: 1, mask: Uint8Array.from([1, 0, 0, 0]) });
  assert.deepEqual(row(found.get("weights"), 1), [0, 0]);
  assert.deepEqual(row(found.get("context"), 1), [0, 0]);
  assert.deepEqual(row(found.get("context"), 0), [1, 2]);
  const open = stages(query, query, value, { scale: 1 });
  assert.ok(Number.isNaN(open.get("context").at(0, 0)));
  assert.ok(Number.isFinite(open.get("context").at(0, 1)));
});

test("a score that is set by hand is cut from the query, and the other scores are not", () => {
  const cut = reduce(START, { set: "scores.1.0", to: 5 });
  const found = compute(data(), reduce(cut, { set: "query.1.0", to: 3 }));
  assert.deepEqual(row(found.get("scores"), 1), [5, 2]);
  assert.equal(found.get("scores").made(1, 0), 5);
  assert.equal(compute(data(), cut).get("scores").made(1, 0), 2);
  near([found.get("weights").at(1, 0)], [1 / (1 + Math.exp(0.5 * (2 - 5)))]);
  const mended = reduce(cut, { set: "scores.1.0", to: null });
  assert.deepEqual(row(compute(data(), mended).get("scores"), 1), [2, 2]);
  assert.equal(START.cells.size, 0);
});

test("an entry of a projection changes what is made with it", () => {
  const made = data({
    inputs: {
      x: numbers([
        [1, 2],
        [3, 4],
      ]),
      W_query: numbers([
        [1, 0],
        [0, 1],
        [10, 20],
      ]),
      W_key: numbers([
        [1, 0],
        [0, 1],
      ]),
      value: numbers([[1], [2]]),
    },
    edit: ["W_query"],
  });
  assert.deepEqual(row(compute(made, START).get("query"), 0), [11, 22]);
  assert.ok(compute(made, START).get("W_query").bias);
  assert.ok(!compute(made, START).get("W_key").bias);
  const found = compute(made, reduce(START, { set: "W_query.1.0", to: 1 }));
  assert.deepEqual(row(found.get("query"), 0), [13, 22]);
  assert.deepEqual(row(found.get("key"), 0), [1, 2]);
});

test("masks have names, and their pairs are shown and hidden", () => {
  assert.equal(maskNamed(data(), "causal"), "10.11");
  const wide = data({ source_tokens: ["a", "b", "c"] });
  assert.equal(maskNamed(wide, "causal"), "110.111");
  assert.equal(maskNamed(wide, "window"), "110.011");
  assert.equal(maskNamed(wide, "padding"), "110.110");
  assert.equal(maskNamed(wide, "all"), "111.111");
  assert.deepEqual(withPair(["10", "11"], 0, 1, true), ["11", "11"]);
  const found = compute(data(), reduce(START, { mask: "10.11" }));
  assert.deepEqual(row(found.get("weights"), 0), [1, 0]);
  assert.equal(found.get("masked_scores").at(0, 1), Number.NEGATIVE_INFINITY);
});

test("a scale is divided by a temperature", () => {
  const hot = reduce(reduce(START, { scale: 1 }), { temperature: 4 });
  assert.equal(scaleOf(data(), hot), 0.25);
  assert.equal(compute(data(), hot).get("scaled_scores").at(1, 1), 0.5);
});

test("a bias is added, and a softcap bends", () => {
  const found = compute(
    data({
      bias: numbers([
        [1, 2],
        [3, 4],
      ]),
      softcap: 2,
    }),
    START,
  );
  near(row(found.get("masked_scores"), 1), [3 + 2 * Math.tanh(0.5), 4 + 2 * Math.tanh(0.5)]);
});

test("the state is one text, and a text that says nothing of this figure changes nothing", () => {
  let state = START;
  assert.equal(write(state), "");
  for (const action of [
    { set: "scores.1.0", to: -2.5 },
    { set: "query.0.1", to: 1e-7 },
    { mask: "10.11" },
    { scale: 1 },
    { temperature: 2 },
    { guess: 0.25 },
  ]) {
    state = reduce(state, action);
  }
  const text = write(state);
  assert.equal(text, "scores.1.0=-2.5&query.0.1=1e-7&mask=10.11&scale=1&temperature=2&guess=0.25");
  assert.deepEqual(read(text, data()), state);
  for (const wrong of [
    ...["scores.2.0=1", "scores.0.2=1", "scores.0=1", "scores.0.0=a", "scores.0.0=", "key.0.0=1"],
    ...[
      "mask=10",
      "mask=10.12",
      "mask=10.11.11",
      "temperature=0",
      "temperature=-1",
      "scale=Infinity",
    ],
    ...["scores.-1.0=1", "scores.00.0=1", "nothing=1", "", "&&", "=", "weights.0.0=1"],
  ]) {
    assert.deepEqual(read(wrong, data()), START, wrong);
  }
  assert.deepEqual(read("guess=1", data({ predict: null })), START);
  assert.deepEqual(read("scale=1&mask=10.11", data({ edit: [] })), START);
});

test("numbers are read as they are typed", () => {
  assert.equal(typed(" −0,5 "), -0.5);
  assert.equal(typed("1e2"), 100);
  for (const none of ["", " ", "-", "a", "1.2.3", "Infinity"]) assert.equal(typed(none), null);
  assert.equal(stepped(0.2, 0.1), 0.3);
});

test("what JSON has no numbers for stands as text", () => {
  const found = compute(
    data({
      inputs: {
        ...data().inputs,
        value: numbers([
          ["NaN", 1],
          ["Infinity", 2],
        ]),
      },
    }),
    START,
  );
  assert.ok(Number.isNaN(found.get("value").at(0, 0)));
  assert.equal(found.get("value").at(1, 0), Number.POSITIVE_INFINITY);
  const single = compute(
    data({
      inputs: {
        ...data().inputs,
        key: {
          ...numbers([
            [0.1, 1],
            [0, 1],
          ]),
          single: true,
        },
      },
    }),
    START,
  );
  assert.equal(single.get("key").at(0, 0), Math.fround(0.1));
});

test("a row is put elsewhere at once, as an arrow is", () => {
  const state = reduce(START, { stage: "query", row: 1, numbers: [3, 4] });
  assert.equal(write(state), "query.1.0=3&query.1.1=4");
  assert.deepEqual(row(compute(data(), state).get("scores"), 1), [7, 4]);
});

test("vectors are projected, turned and held together", () => {
  assert.deepEqual(foot([3, 4], [2, 0]), [3, 0]);
  assert.deepEqual(foot([3, 4], [0, 0]), [0, 0]);
  assert.deepEqual(turned([1, 0], 90, 2), [0, 2]);
  const corners = [
    [0, 0],
    [2, 0],
    [2, 2],
    [0, 2],
  ];
  const found = hull([[1, 1], ...corners, [1, 0], [0.5, 1]]);
  assert.deepEqual(new Set(found.map(String)), new Set(corners.map(String)));
  assert.deepEqual(hull([[1, 2]]), [[1, 2]]);
  assert.equal(
    hull([
      [0, 0],
      [1, 1],
      [2, 2],
    ]).length,
    2,
  );
  assert.equal(reach([[2.1, -0.5]]), 3);
  assert.equal(reach([[0.3, Number.NaN]]), 0.3);
  assert.equal(reach([[0, 0]]) > 0, true);
});

test("a mask alone has no stage to compute", () => {
  assert.equal(compute(data({ inputs: {} }), START).size, 0);
});

test("entropy is that of Shannon, in nats", () => {
  assert.equal(entropy([0, 1, 0]), 0);
  near([entropy([0.25, 0.25, 0.25, 0.25]), entropy([0.5, 0.5])], [Math.log(4), Math.log(2)]);
});

test("dropout draws the same numbers for the same count, and their mean goes to the weights", () => {
  const made = data({ edit: ["dropout"] });
  const at = (draws) => compute(made, { ...START, draws, dropout: 0.5 });
  assert.equal(at(0).get("dropped_weights").sameAs, "weights");
  const [one, again, many] = [at(1), at(1), at(5000)];
  for (const row_ of [0, 1]) {
    const weights = row(one.get("weights"), row_);
    row(one.get("dropped_weights"), row_).forEach((each, column) => {
      assert.ok(each === 0 || each === weights[column] * 2);
    });
    assert.deepEqual(row(one.get("context"), row_), row(again.get("context"), row_));
    row(many.get("mean_weights"), row_).forEach((each, column) => {
      assert.ok(Math.abs(each - weights[column]) < 0.06);
    });
  }
  const drawn = new Set(
    [1, 2, 3, 4, 5, 6].map((draws) => row(at(draws).get("dropped_weights"), 0).join()),
  );
  assert.ok(drawn.size > 1);
});

test("tokens in another order take everything along, and what a hand has set", () => {
  const made = data({ edit: ["order", "scores", "query"] });
  let state = reduce(START, { set: "scores.0.1", to: 5 });
  state = reduce(state, { set: "query.1.0", to: 7 });
  const before = compute(made, state);
  state = reduce(state, { order: [1, 0] });
  const after = compute(made, state);
  assert.equal(write(state), "scores.1.0=5&query.0.0=7&order=1.0");
  assert.deepEqual(read(write(state), made), state);
  for (const at of [0, 1]) near(row(after.get("context"), 1 - at), row(before.get("context"), at));
  assert.equal(write(reduce(state, { order: [0, 1] })), "scores.0.1=5&query.1.0=7");
  for (const text of ["order=0.0", "order=0", "order=0.1.2", "order=a.b"])
    assert.equal(read(text, made).order, null);
});

test("rotary turns by the place, so that only the distance counts", () => {
  const made = data({ edit: ["rotary", "order"] });
  const plain = compute(made, START);
  const turned = compute(made, { ...START, rotary: 1 });
  near(row(turned.get("rotated_query"), 0), row(plain.get("query"), 0));
  near(row(turned.get("rotated_query"), 1), [-2 * Math.sin(1), 2 * Math.cos(1)]);
  near([turned.get("scores").at(1, 1)], [plain.get("scores").at(1, 1)]);
  assert.notEqual(turned.get("scores").at(0, 1), plain.get("scores").at(0, 1));
});

test("a width has scores of its own, and 1/√width goes along", () => {
  const widths = [2, 4].map((width) => ({
    width,
    scores: numbers([
      [width, 1],
      [0, 0],
    ]),
  }));
  const made = data({ edit: ["width", "scale"], widths, scale: 1 });
  delete made.inputs.query;
  delete made.inputs.key;
  assert.equal(compute(made, START).get("scores").at(0, 0), 4);
  assert.equal(
    compute(made, { ...START, width: 2 })
      .get("scores")
      .at(0, 0),
    2,
  );
  assert.equal(scaleOf(made, { ...START, width: 2 }), 1);
  near([scaleOf(made, { ...START, width: 2, scale: 0.5 })], [Math.SQRT1_2]);
  assert.equal(read("width=3", made).width, null);
  assert.equal(read("width=2", made).width, 2);
});

test("a view keeps memory as it is, a transpose takes it apart by heads", () => {
  const query = matrix(3, 4, (row, column) => 10 * row + column);
  const numbers = (places) => places.map((at) => query.numbers[at]);
  const [split, joined] = placesOfHeads(query, 2, true, true);
  assert.deepEqual(numbers(split), [0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23]);
  assert.deepEqual(numbers(joined), [...query.numbers]);
  // Without the way back numbers of several tokens stand in one row.
  const [, mixed] = placesOfHeads(query, 2, true, false);
  assert.deepEqual(numbers(mixed), numbers(split));
  const [viewed, back] = placesOfHeads(query, 2, false, false);
  assert.deepEqual(numbers(viewed), [...query.numbers]);
  assert.deepEqual(numbers(back), [...query.numbers]);
  const [, wrong] = placesOfHeads(query, 2, false, true);
  assert.deepEqual(numbers(wrong), [0, 1, 12, 13, 2, 3, 20, 21, 10, 11, 22, 23]);
});

test("the largest score is taken away before exp, and a hidden pair has none", () => {
  const column = (rows) => of(rows.map((each) => [each]));
  const ways = (scores, options) =>
    stages(of([[1]]), column(scores), column(scores), { scale: 1, ...options });
  near(row(ways([888, 889]).get("weights"), 0), [1 / (1 + Math.E), Math.E / (1 + Math.E)]);
  const minus = ways([1, 0], { mask: Uint8Array.from([1, 0]) });
  near(row(minus.get("weights"), 0), [1, 0]);
  assert.equal(minus.get("masked_scores").formula, "scores, −∞ where hidden");
});

test("words stand beside their points, and none covers another, a point or the edge", () => {
  const edge = [-24, -224, 224, 24];
  const crowds = [
    [
      [110, -174],
      [110, -174],
      [114, -170],
      [44, -116],
      [154, -50],
      [10, -160],
      [86, -30],
    ],
    [
      [200, -200],
      [200, -198],
      [0, 0],
    ],
  ];
  for (const points of crowds) {
    const words = points.map((point, at) => ({ point, word: at ? "journey" : "query journey" }));
    const boxes = beside(words, edge).map(([x, y], at) => {
      const wide = 6.6 * words[at].word.length;
      return [x, y - 10, x + wide, y + 3];
    });
    const meet = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
    boxes.forEach((box, at) => {
      const [left, top, right, bottom] = box;
      assert.ok(left >= -24.01 && top >= -224.01 && right <= 224.01 && bottom <= 24.01, `${box}`);
      for (const [x, y] of points) assert.ok(!meet(box, [x - 4, y - 4, x + 4, y + 4]), `${at}`);
      for (const other of boxes.slice(at + 1)) assert.ok(!meet(box, other), `${box} on ${other}`);
    });
  }
  assert.deepEqual(beside([], edge), []);
});
