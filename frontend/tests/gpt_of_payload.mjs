// What the GPT of a payload in a file makes of ids, to another: what tests/drawing/page/test_sentence.py asks.
import { readFileSync, writeFileSync } from "node:fs";
import { forward, readGpt } from "../src/gpt";
import { BytesSource } from "../src/source";

const [payload, answers, ...ids] = process.argv.slice(2);
const bytes = new Uint8Array(readFileSync(payload));
const source = new BytesSource((start, size) => bytes.slice(start, start + size));
const { next, maps } = forward(await readGpt(source), ids.map(Number));
const numbers = (matrix) => [...matrix.numbers];
writeFileSync(
  answers,
  JSON.stringify({ next: numbers(next), maps: maps.map((layer) => layer.map(numbers)) }),
);
