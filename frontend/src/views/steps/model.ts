// The numbers of a trace (drawing/steps.py), and which of them belong to one sample and head.
import type { ArrayPlace, Head, Numbers } from "../../payload";
import type { Source } from "../../source";

export type Axis = "query" | "key" | "width";

/** What a part of a layer does to a query or a key: pairs are turned, or a row is divided by the root of its
 * mean square. */
export type Change =
  | { part: string; layout: "half" | "interleaved"; turned: number }
  | { part: string; eps: number; weight: number[] };

export interface StepData {
  name: string;
  axes: [string, string];
  lead: string[];
  shape: string;
  formula: string;
  same_as: string | null;
  /** Of code of one's own that goes another way than the definition: the stage that it is made of. */
  of?: string;
  /** Of a weight matrix: its last row is the bias. */
  bias?: boolean;
  /** Of a weight matrix: parts of the layer that change what is made with it, or what it is multiplied with. */
  parts?: string;
  /** How each of these parts comes to its number; null where that is not known. */
  changes?: Change[] | null;
}

/** What the arithmetic wants to know beside the numbers. */
export interface CallData {
  tokens: string[];
  source_tokens: string[];
  heads: number[];
  scale: number;
  softcap: number | null;
  dropout: number | null;
  sinks: number[] | null;
  renormalised: boolean;
}

export interface TraceData extends CallData {
  /** What was traced. */
  of: string;
  steps: StepData[];
  samples: number[];
  kernel: string;
  difference: number | null;
}

const EXPECTED = "expected_";

/** The first stage of somebody's code that is not what the stages before it make; undefined where none is. */
export function wrongOf({ steps }: TraceData): string | undefined {
  return steps.find(({ name }) => name.startsWith(EXPECTED))?.name.slice(EXPECTED.length);
}

export interface Numbered {
  rows: number;
  columns: number;
  at(row: number, column: number): number;
  /** Largest finite number, its sign aside. */
  largest: number;
}

/** One stage, for one sample and head. */
export interface Stage extends Numbered {
  name: string;
  formula: string;
  shape: string;
  /** The stage that it merely repeats. */
  sameAs: string | null;
  /** The stage that it is made of in a way of its own, which its formula tells. */
  of?: string | undefined;
  rowAxis: Axis;
  columnAxis: Axis;
  /** What the columns are, where they are no tokens: "head_dim". */
  columnName: string;
  rowName: string;
  bias: boolean;
  parts: string;
  changes: Change[] | null;
  /** What it should be, where it is the first that is another. */
  expected?: (Numbered & { formula: string }) | null;
}

const ROW_AXES: Record<string, Axis> = {
  query_len: "query",
  tokens: "query",
  kv_len: "key",
  source_tokens: "key",
};

export type Arrays = Map<string, Numbers>;

export async function readArrays(source: Source, head: Head<TraceData>): Promise<Arrays> {
  const names = Object.keys(head.arrays);
  const all = await Promise.all(names.map((name) => source.array(name)));
  return new Map(names.map((name, at) => [name, all[at]!]));
}

export function stagesOf(
  head: Head<TraceData>,
  arrays: Arrays,
  sample: number,
  queryHead: number,
): Stage[] {
  const { steps } = head.data;
  const found = new Map<string, Stage>();
  for (const step of steps) {
    if (step.same_as !== null) {
      const origin = found.get(step.same_as)!;
      found.set(step.name, { ...origin, ...named(step), sameAs: step.same_as });
      continue;
    }
    const place = head.arrays[step.name]!;
    const numbers = numbersOf(place, arrays.get(step.name)!, head.data, sample, queryHead);
    if (step.name.startsWith(EXPECTED)) {
      found.get(step.name.slice(EXPECTED.length))!.expected = { ...numbers, formula: step.formula };
      continue;
    }
    found.set(step.name, {
      ...named(step),
      ...numbers,
      sameAs: null,
      rowAxis: ROW_AXES[step.axes[0]] ?? "width",
      columnAxis: step.axes[1] === "kv_len" ? "key" : "width",
      columnName: step.axes[1],
      rowName: step.axes[0],
      bias: step.bias ?? false,
      parts: step.parts ?? "",
      changes: step.changes ?? null,
      expected: null,
    });
  }
  return [...found.values()];
}

function numbersOf(
  { shape }: ArrayPlace,
  numbers: Numbers,
  { heads }: TraceData,
  sample: number,
  queryHead: number,
): Numbered {
  const [batch, count, rows, columns] = shape as [number, number, number, number];
  // Query heads share a key head in groups; what has no heads is the same for all.
  const own = Math.floor((queryHead * count) / heads.length);
  const start = (Math.min(sample, batch - 1) * count + own) * rows * columns;
  let largest = 0;
  for (let at = start; at < start + rows * columns; at++) {
    const size = Math.abs(numbers[at]!);
    if (size > largest && size < Infinity) largest = size;
  }
  const at = (row: number, column: number) => numbers[start + row * columns + column]!;
  return { rows, columns, at, largest };
}

function named(step: StepData) {
  return { name: step.name, formula: step.formula, shape: step.shape, of: step.of };
}

/** What a row is called: a token, the bias, or a place in the vector that is multiplied. */
export function rowLabel(stage: Stage, data: CallData, row: number): string {
  if (stage.rowAxis === "query") return data.tokens[row]!;
  if (stage.rowAxis === "key") return data.source_tokens[row]!;
  return stage.bias && row === stage.rows - 1 ? "bias" : `${stage.rowName} ${row}`;
}

/** Characters for which a cell has room. */
const MOST_OF_CELL = 8;

/** A number to four places, as Python's `print(trace)` has it. */
export function number(value: number): string {
  if (value === -Infinity) return "−∞";
  if (value === Infinity) return "∞";
  if (Number.isNaN(value)) return "nan";
  return value.toFixed(4).replace("-", "−");
}

/** A number that fits into a cell: digits that are cut off would make another number of it. */
export function cellNumber(value: number): string {
  if (!Number.isFinite(value)) return number(value);
  const texts = [4, 3, 2, 1, 0].map((places) => value.toFixed(places));
  const text = texts.find((each) => each.length <= MOST_OF_CELL) ?? value.toExponential(1);
  return text.replaceAll("-", "−").replace("e+", "e");
}

/** The same as a factor: in brackets where it is negative. */
export function factor(value: number): string {
  const text = number(value);
  return text.startsWith("−") ? `(${text})` : text;
}
