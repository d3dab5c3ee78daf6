import assert from "node:assert/strict";
import { test } from "node:test";
import { arithmeticOf } from "../src/figure/arithmetic";
import { cellNumber, factor, number } from "../src/figure/stage";
import { stagesOf } from "../src/figure/trace";

const [ROWS, KEYS] = [2, 3];
const QUERY = [1, -2, 0.5, 0];
const KEY = [1, 0, 0, 1, 2, 2];

/** The payload of a small attention, each stage worked out here. */
function payload(change = {}) {
  const scores = [];
  for (let row = 0; row < ROWS; row++) {
    for (let key = 0; key < KEYS; key++) {
      scores.push(QUERY[2 * row] * KEY[2 * key] + QUERY[2 * row + 1] * KEY[2 * key + 1]);
    }
  }
  const masked = scores.map((score, at) => (at === 2 ? Number.NEGATIVE_INFINITY : score / 2));
  const weights = [];
  for (let row = 0; row < ROWS; row++) {
    const exps = masked.slice(row * KEYS, (row + 1) * KEYS).map(Math.exp);
    const total = exps.reduce(
      (a, b) => a + b,
      Math.exp(change.sinks?.[0] ?? Number.NEGATIVE_INFINITY),
    );
    weights.push(...exps.map((each) => each / total));
  }
  const value = [1, 2, 3];
  const context = [0, 1].map((row) =>
    value.reduce((sum, each, key) => sum + each * weights[row * KEYS + key], 0),
  );
  const step = (name, axes, formula, same_as = null) => ({
    name,
    axes,
    formula,
    same_as,
    shape: "",
  });
  const square = ["query_len", "kv_len"];
  const stages = [
    step("query", ["query_len", "head_dim"], "x @ W_query"),
    step("key", ["kv_len", "head_dim"], "x @ W_key"),
    step("value", ["kv_len", "head_dim"], "key, doubled"),
    step("scores", square, "query @ key.mT"),
    step("scaled_scores", square, "scores × scale"),
    step("capped_scores", square, "no softcap", "scaled_scores"),
    step("masked_scores", square, "−∞ where hidden"),
    step("weights", square, "softmax"),
    step("dropped_weights", square, "no dropout", "weights"),
    step("context", ["query_len", "head_dim"], "weights @ value"),
  ];
  const numbers = {
    query: QUERY,
    key: KEY,
    value,
    scores,
    scaled_scores: scores.map((score) => score / 2),
    masked_scores: masked,
    weights,
    context,
  };
  const widths = { query: [ROWS, 2], key: [KEYS, 2], value: [KEYS, 1], context: [ROWS, 1] };
  const arrays = Object.fromEntries(
    Object.keys(numbers).map((name) => [
      name,
      { shape: [1, 1, ...(widths[name] ?? [ROWS, KEYS])] },
    ]),
  );
  const data = {
    tokens: ["a", "b"],
    source_tokens: ["x", "y", "z"],
    stages,
    samples: [0],
    heads: [0],
    scale: 0.5,
    softcap: null,
    dropout: null,
    sinks: null,
    ...change,
  };
  const every = new Map(
    Object.entries(numbers).map(([name, each]) => [name, Float64Array.from(each)]),
  );
  const named = stagesOf({ data, arrays }, every, 0, 0);
  return {
    numbers,
    explain: (name, row, column) => arithmeticOf(named, data, 0, name, row, column),
  };
}

/** The right side and the left side of the sums that are written, worked out again. */
function holds(line) {
  const [left, right] = line
    .replaceAll("−", "-")
    .replaceAll("·", "*")
    .replaceAll("×", "*")
    .split(" = ");
  assert.match(left, /^[-+*/(). \d]+$/);
  const worked = Function(`return ${left}`)();
  assert.ok(Math.abs(worked - Number(right)) < 1e-3, line);
}

test("every sum that is written comes out", () => {
  const { explain } = payload();
  for (const stage of ["scores", "scaled_scores", "weights", "context"]) {
    const columns = stage === "context" ? 1 : KEYS;
    for (let row = 0; row < ROWS; row++) {
      for (let column = 0; column < columns; column++) {
        const found = explain(stage, row, column);
        const sums = found.lines.filter((line) => line.sum);
        if (stage !== "weights" || row !== 0 || column !== 2) assert.equal(sums.length, 1);
        for (const { text } of sums) holds(text);
      }
    }
  }
});

test("a hidden key is said to be hidden", () => {
  const { explain } = payload();
  assert.match(explain("masked_scores", 0, 2).lines[0].text, /^The mask hides this key.*−∞/);
  const found = explain("weights", 0, 2);
  assert.match(found.lines.at(-1).text, /the mask hides this key: weight 0/);
  assert.deepEqual(
    found.keys.map((each) => each.hidden),
    [false, false, true],
  );
  assert.deepEqual(
    found.keys.map((each) => each.picked),
    [false, false, true],
  );
});

test("a sink counts in the sum", () => {
  const { explain, numbers } = payload({ sinks: [1.5] });
  const found = explain("weights", 1, 1);
  assert.ok(found.lines.some(({ text }) => text.includes("sink")));
  for (const { text, sum } of found.lines) if (sum) holds(text);
  const shares = found.keys.map((each) => each.share);
  assert.deepEqual(shares, numbers.weights.slice(KEYS));
  assert.ok(shares.reduce((a, b) => a + b, 0) < 1);
});

test("a sentence begins with a capital, but not with that of a name", () => {
  const [query, value] = ["query", "value"].map((name) => payload().explain(name, 0, 0).lines);
  assert.deepEqual([query[0].text, value[0].text], ["X @ W_query.", "key, doubled."]);
});

test("a stage that repeats another points to it", () => {
  const found = payload().explain("capped_scores", 1, 0);
  assert.equal(found.lines[0].text, "The same as scaled_scores: no softcap.");
  assert.deepEqual(found.origins, [{ stage: "scaled_scores", row: 1, column: 0 }]);
});

test("where a number comes from", () => {
  const { explain } = payload();
  assert.deepEqual(explain("scores", 1, 2).origins, [
    { stage: "query", row: 1, column: null },
    { stage: "key", row: 2, column: null },
  ]);
  assert.deepEqual(explain("context", 1, 0).origins, [
    { stage: "weights", row: 1, column: null },
    { stage: "value", row: null, column: 0 },
  ]);
});

/** A stage of these rows. */
function matrix(name, values, more = {}) {
  const [rows, columns] = [values.length, values[0].length];
  const at = (row, column) => values[row][column];
  const plain = { rowAxis: "query", columnAxis: "width", sameAs: null, bias: false, parts: "" };
  return [
    name,
    { ...plain, name, rows, columns, at, formula: "", columnName: "head_dim", ...more },
  ];
}

test("a softcap, a bias and dropout are written out", () => {
  const capped = 2 * Math.tanh(1.5);
  const made = {
    scaled_scores: [[3, 3]],
    capped_scores: [[capped, capped]],
    masked_scores: [[capped + 0.5, capped - 0.5]],
    weights: [[0.75, 0.25]],
    dropped_weights: [[1, 0]],
  };
  const stages = new Map(Object.entries(made).map(([name, values]) => matrix(name, values)));
  const data = { softcap: 2, dropout: 0.25, sinks: null, heads: [0] };
  const last = (name, column) => arithmeticOf(stages, data, 0, name, 0, column).lines.at(-1).text;
  assert.equal(last("capped_scores", 0), "2.0000 · tanh(3.0000 / 2.0000) = 1.8103");
  assert.equal(last("masked_scores", 0), "1.8103 + 0.5000 = 2.3103");
  assert.equal(last("masked_scores", 1), "1.8103 + (−0.5000) = 1.3103");
  assert.equal(last("dropped_weights", 0), "0.7500 / 0.7500 = 1.0000");
  assert.equal(last("dropped_weights", 1), "Dropout drew this weight: 0.2500 becomes 0.");
});

function times(x, weight, bias) {
  return x.map((row) =>
    bias.map((each, at) => row.reduce((sum, value, d) => sum + value * weight[d][at], each)),
  );
}

test("every projection that is written comes out", () => {
  const x = [
    [1, -2, 0.5],
    [0.25, 3, -1],
  ];
  const weight = [
    [1, 2],
    [-0.5, 0.75],
    [3, -1],
  ];
  const bias = [0.125, -4];
  const made = times(x, weight, bias);
  const data = { tokens: ["a", "b"], source_tokens: ["a", "b", "c"], heads: [1] };
  const width = { rowAxis: "width" };
  const stages = new Map([
    matrix("x", x),
    matrix("W_query", [...weight, bias], { ...width, bias: true }),
    matrix("query", made),
    matrix("W_key", [...weight, bias], { ...width, bias: true, parts: "Turned" }),
    matrix("key", [[9, 9], ...made.map((row) => row.map((each) => each / 2))], { rowAxis: "key" }),
    matrix("context", made),
    matrix(
      "contexts",
      made.map((row) => [0, 0, ...row]),
    ),
    matrix("W_output", [[1], [2], ...times(weight.slice(0, 2), [[1], [1]], [0])], width),
    matrix("output", times(made, times(weight.slice(0, 2), [[1], [1]], [0]), [0])),
  ]);
  const explain = (name, row, column) => arithmeticOf(stages, data, 0, name, row, column);
  for (const [name, columns] of Object.entries({ query: 2, key: 2, output: 1 })) {
    for (let row = 0; row < 2; row++) {
      for (let column = 0; column < columns; column++) {
        const { lines } = explain(name, name === "key" ? row + 1 : row, column);
        holds(lines.find(({ sum }) => sum).text);
      }
    }
  }
  assert.deepEqual(explain("query", 1, 0).origins, [
    { stage: "x", row: 1, column: null },
    { stage: "W_query", row: null, column: 0 },
  ]);
  assert.deepEqual(explain("output", 1, 0).origins[0], { stage: "contexts", row: 1, column: null });
  assert.match(explain("key", 1, 0).lines.at(-1).text, /^After Turned: 1\.\d{4}\.$/);
  assert.match(explain("key", 0, 0).lines[0].text, /the cache has it/);
  // Of the head that is shown its context is marked, of another one nothing.
  assert.deepEqual(explain("contexts", 1, 2).origins, [{ stage: "context", row: 1, column: 0 }]);
  assert.deepEqual(explain("contexts", 1, 1).origins, [{ stage: "context", row: -1, column: 1 }]);
});

test("numbers fit into their cells without becoming other numbers", () => {
  assert.equal(number(-1.23456), "−1.2346");
  assert.equal(factor(-1), "(−1.0000)");
  assert.equal(number(Number.NEGATIVE_INFINITY), "−∞");
  const cases = [
    [0, "0"],
    [1.23456, "1.23"],
    [-123.456, "−123"],
    [123456.7, "1e5"],
    [1234567890, "1e9"],
    [Number.NaN, "nan"],
  ];
  for (const [value, expected] of cases) assert.equal(cellNumber(value), expected);
});
