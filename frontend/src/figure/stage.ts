// A stage of attention as rows and columns of numbers, and how its numbers and its rows are written.

export type Axis = "query" | "key" | "width";

/** The settings of a call that the arithmetic reads in addition to the stages. */
export interface Call {
  tokens: string[];
  source_tokens: string[];
  heads: number[];
  scale: number;
  softcap: number | null;
  dropout: number | null;
  sinks: number[] | null;
}

export interface Numbered {
  rows: number;
  columns: number;
  at(row: number, column: number): number;
  /** The largest absolute value of the finite numbers. */
  largest: number;
}

/** One stage, of one sample and head. */
export interface Stage extends Numbered {
  name: string;
  formula: string;
  /** The stage that it repeats. */
  sameAs: string | null;
  /** The stage that the user's code computed it from, where that is not the definition. */
  of?: string | undefined;
  rowAxis: Axis;
  columnAxis: Axis;
  /** The name of the axis: "head_dim". */
  columnName: string;
  bias: boolean;
  parts: string;
  /** The numbers that the definition gives, of the first stage that differs from it. */
  expected?: (Numbered & { formula: string }) | null;
}

const AXES: Record<string, Axis> = {
  query_len: "query",
  tokens: "query",
  kv_len: "key",
  source_tokens: "key",
};

/** What an axis of this name counts: queries, keys, or the numbers of a vector. */
export function axisOf(name: string): Axis {
  return AXES[name] ?? "width";
}

export function largestOf(numbers: Iterable<number>): number {
  let largest = 0;
  for (const each of numbers) {
    const size = Math.abs(each);
    if (size > largest && size < Infinity) largest = size;
  }
  return largest;
}

type Words = Pick<Call, "tokens" | "source_tokens">;

/** What each row of a stage is called: a token, the bias, or a place in a vector. */
export function rowLabels(stage: Stage, { tokens, source_tokens }: Words): string[] {
  if (stage.name === "split")
    return places(stage.rows).map(
      (at) => `${Math.floor(at / tokens.length)} ${tokens[at % tokens.length]}`,
    );
  if (stage.rowAxis !== "width") return stage.rowAxis === "query" ? tokens : source_tokens;
  return places(stage.rows).map((at) =>
    stage.bias && at === stage.rows - 1 ? "bias" : String(at),
  );
}

/** What each column of a stage is called: a key, or a place in a vector. */
export function columnLabels(stage: Stage, { source_tokens }: Words): string[] {
  return stage.columnAxis === "key" ? source_tokens : places(stage.columns).map(String);
}

export function places(count: number): number[] {
  return Array.from({ length: count }, (_, at) => at);
}

/** A number to four places, as Python's `print(trace)` has it. */
export function number(value: number): string {
  if (value === -Infinity) return "−∞";
  if (value === Infinity) return "∞";
  if (Number.isNaN(value)) return "nan";
  return value.toFixed(4).replace("-", "−");
}

/** Characters for which a cell has room. */
const MOST_OF_CELL = 5;

/** A number in a cell: two decimals, and fewer where these do not fit. */
export function cellNumber(value: number): string {
  if (!Number.isFinite(value)) return number(value);
  if (value === 0) return "0";
  const texts = [2, 1, 0].map((digits) => value.toFixed(digits));
  const text = texts.find((each) => each.length <= MOST_OF_CELL) ?? value.toExponential(0);
  return text.replaceAll("-", "−").replace("e+", "e");
}

/** A number as a factor: in brackets if it is negative. */
export function factor(value: number): string {
  const text = number(value);
  return text.startsWith("−") ? `(${text})` : text;
}

/** "scores.1.0" as its parts. */
export function placeOf(at: string): [string, number, number] {
  const [stage, row, column] = at.split(".");
  return [stage!, Number(row), Number(column)];
}
