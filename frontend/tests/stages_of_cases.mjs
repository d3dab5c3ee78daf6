// The stages of cases that stand in a file, to another: what tests/drawing/element/test_core.py asks.
import { readFileSync, writeFileSync } from "node:fs";
import { matrix, stages } from "../src/figure/core";

const [cases, answers] = process.argv.slice(2);
const read = (rows, columns, numbers) =>
  matrix(rows, columns, (row, column) => Number(numbers[row * columns + column]));

const found = JSON.parse(readFileSync(cases, "utf8")).map((each) => {
  const [query, key, value] = ["query", "key", "value"].map((name) => read(...each[name]));
  const made = stages(query, key, value, {
    scale: each.scale,
    softcap: each.softcap,
    mask: each.mask && Uint8Array.from(each.mask),
    bias: each.bias && Float64Array.from(each.bias, Number),
  });
  const named = [...made].map(([name, stage]) => {
    const numbers = [];
    for (let row = 0; row < stage.rows; row++)
      for (let column = 0; column < stage.columns; column++)
        numbers.push(String(stage.at(row, column)));
    return [name, numbers];
  });
  return Object.fromEntries(named);
});
writeFileSync(answers, JSON.stringify(found));
