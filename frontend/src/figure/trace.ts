// The numbers of a trace (drawing/element/trace_page.py), and those of one sample and head.
import type { ArrayPlace, Head, Numbers } from "../payload";
import type { Source } from "../source";
import { axisOf, type Call, largestOf, type Numbered, type Stage } from "./stage";

export interface StageData {
  name: string;
  axes: [string, string];
  shape: string;
  formula: string;
  same_as: string | null;
  of?: string;
  /** Of a weight matrix: True if its last row is the bias. */
  bias?: boolean;
  /** Of a weight matrix: the parts of the layer that change its input or its output. */
  parts?: string;
}

export interface TraceData extends Call {
  /** The title of the trace. */
  of: string;
  stages: StageData[];
  samples: number[];
}

const EXPECTED = "expected_";

/** The first stage of the user's code that differs from the definition; undefined if none does. */
export function wrongOf({ stages }: TraceData): string | undefined {
  return stages.find(({ name }) => name.startsWith(EXPECTED))?.name.slice(EXPECTED.length);
}

export type Arrays = Map<string, Numbers>;

export async function readArrays(source: Source, head: Head<TraceData>): Promise<Arrays> {
  const names = Object.keys(head.arrays);
  const all = await Promise.all(names.map((name) => source.array(name)));
  return new Map(names.map((name, at) => [name, all[at]!]));
}

/** The stages of one sample and head, by name and in order. */
export function stagesOf(
  head: Head<TraceData>,
  arrays: Arrays,
  sample: number,
  queryHead: number,
): Map<string, Stage> {
  const stages = new Map<string, Stage>();
  for (const { axes, same_as, bias, parts, ...step } of head.data.stages) {
    if (same_as !== null) {
      stages.set(step.name, { ...stages.get(same_as)!, ...step, sameAs: same_as });
      continue;
    }
    const place = head.arrays[step.name]!;
    const numbers = numbersOf(place, arrays.get(step.name)!, head.data, sample, queryHead);
    stages.set(step.name, {
      ...step,
      ...numbers,
      sameAs: null,
      rowAxis: axisOf(axes[0]),
      columnAxis: axes[1] === "kv_len" ? "key" : "width",
      columnName: axes[1],
      bias: bias ?? false,
      parts: parts ?? "",
    });
    if (!step.name.startsWith(EXPECTED)) continue;
    const found = stages.get(step.name.slice(EXPECTED.length))!;
    found.expected = { ...numbers, formula: step.formula };
  }
  return stages;
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
  const at = (row: number, column: number) => numbers[start + row * columns + column]!;
  return {
    rows,
    columns,
    at,
    largest: largestOf(numbers.subarray(start, start + rows * columns)),
  };
}
