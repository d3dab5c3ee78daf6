// How one number of a stage comes about: what was multiplied and added, and where that stands.
import { type Call, factor, number, places, type Stage } from "./stage";

/** A part of another stage: a row, a column or a cell. */
export interface Origin {
  stage: string;
  row: number | null;
  column: number | null;
}

export interface Line {
  text: string;
  /** Whether it is numbers, not words. */
  sum?: boolean;
}

export interface KeyLine {
  key: number;
  cells: string[];
  /** 0 to 1, drawn as a bar. */
  share: number;
  hidden: boolean;
  picked: boolean;
}

export interface Arithmetic {
  lines: Line[];
  /** Numbers of every key, or of those with the largest weights. */
  keys: KeyLine[];
  more: string;
  origins: Origin[];
}

/** How many terms of a sum are written out; the others are added up. */
const TERMS = 8;
/** How many keys a table has; those with the largest weights, and the one that is asked for. */
const KEYS = 24;

/** How a number comes about. */
export function arithmeticOf(
  stages: Map<string, Stage>,
  data: Call,
  queryHead: number,
  name: string,
  row: number,
  column: number,
): Arithmetic {
  const stage = stages.get(name)!;
  const value = stage.at(row, column);
  const found: Arithmetic = { lines: [], keys: [], more: "", origins: [] };
  const say = (text: string) => found.lines.push({ text });
  const work = (text: string) => found.lines.push({ text, sum: true });
  const from = (stageName: string, r: number | null, c: number | null) => {
    if (stages.has(stageName)) found.origins.push({ stage: stageName, row: r, column: c });
  };
  const expected = stage.expected?.at(row, column) ?? value;
  if (number(expected) !== number(value)) {
    say(`Here it is ${number(value)}; of the stages before it ${number(expected)} is expected.`);
  }
  if (stage.sameAs !== null) {
    say(`The same as ${stage.sameAs}: ${stage.formula}.`);
    from(stage.sameAs, row, column);
    return found;
  }
  switch (stage.of || number(expected) !== number(value) ? "" : name) {
    case "scores": {
      const query = stages.get("query")!;
      const key = stages.get("key")!;
      from("query", row, null);
      from("key", column, null);
      const products = places(query.columns).map((d): [number, number] => [
        query.at(row, d),
        key.at(column, d),
      ]);
      say("The query times the key, number by number, added up:");
      work(`${sum(products)} = ${number(value)}`);
      break;
    }
    case "scaled_scores": {
      const score = stages.get("scores")!.at(row, column);
      from("scores", row, column);
      say(`${stage.formula}:`);
      work(`${factor(score)} × ${number(data.scale)} = ${number(value)}`);
      break;
    }
    case "capped_scores": {
      const scaled = stages.get("scaled_scores")!.at(row, column);
      const cap = number(data.softcap ?? 0);
      from("scaled_scores", row, column);
      say("Bent so that no score is beyond the softcap:");
      work(`${cap} · tanh(${number(scaled)} / ${cap}) = ${number(value)}`);
      break;
    }
    case "masked_scores": {
      const capped = stages.get("capped_scores")!.at(row, column);
      from("capped_scores", row, column);
      if (value === -Infinity) {
        say(
          `The mask hides this key from the query: ${number(capped)} becomes −∞, so that its weight is 0.`,
        );
      } else if (value === capped) {
        say(`The query may attend to this key: ${number(capped)} stays.`);
      } else {
        say("The bias is added:");
        work(`${number(capped)} + ${factor(value - capped)} = ${number(value)}`);
      }
      break;
    }
    case "weights":
      weights(stages, data, queryHead, row, column, found);
      break;
    case "dropped_weights": {
      const weight = stages.get("weights")!.at(row, column);
      from("weights", row, column);
      const kept = 1 - (data.dropout ?? 0);
      if (value === 0) {
        say(
          weight === 0
            ? "The weight was 0 already."
            : `Dropout drew this weight: ${number(weight)} becomes 0.`,
        );
      } else {
        say(
          `Kept by dropout, and made larger by 1/(1 − ${number(1 - kept)}), so that the sum stays the same on average:`,
        );
        work(`${number(weight)} / ${number(kept)} = ${number(value)}`);
      }
      break;
    }
    case "context": {
      const weight = stages.get("dropped_weights")!;
      const values = stages.get("value")!;
      from(weight.sameAs ?? "dropped_weights", row, null);
      from("value", null, column);
      const used = places(values.rows).filter((j) => weight.at(row, j) !== 0);
      if (used.length === 0) {
        say("Nothing to attend to: 0.");
        break;
      }
      say("Each key's value times its weight, added up:");
      // The heaviest first where not all are written out.
      if (used.length > TERMS)
        used.sort((a, b) => Math.abs(weight.at(row, b)) - Math.abs(weight.at(row, a)));
      work(`${sum(used.map((j) => [weight.at(row, j), values.at(j, column)]))} = ${number(value)}`);
      break;
    }
    case "contexts":
    case "output":
      if (!projected(stages, stage, row, column, found)) {
        const { columns } = stages.get("context")!;
        const [head, place] = [Math.floor(column / columns), column % columns];
        // Of another head there is no row to mark, but the number is named all the same.
        from("context", data.heads[queryHead] === head ? row : -1, place);
        const after = stage.parts && `, changed by ${stage.parts}`;
        say(`Number ${place} of the context of head ${head}${after}.`);
      }
      break;
    case "query":
    case "key":
    case "value":
      if (!projected(stages, stage, row, column, found)) {
        from(name !== "query" && stages.has("source") ? "source" : "x", row, null);
        say(sentence(stage.formula, stages));
      }
      break;
    default:
      if (stage.of) from(stage.of, row, column);
      say(sentence(stage.formula, stages));
  }
  return found;
}

/** A linear map: a row of what is projected times a column of the weights; false without weights. */
function projected(
  stages: Map<string, Stage>,
  { name, rows, at }: Stage,
  row: number,
  column: number,
  found: Arithmetic,
): boolean {
  const matrix = stages.get(`W_${name}`);
  if (!matrix) return false;
  const plain = name !== "query" && stages.has("source") ? "source" : "x";
  const source = stages.get(name === "output" ? "contexts" : plain)!;
  // A cache has keys before those that are projected now.
  const place = row - (rows - source.rows);
  if (place < 0) {
    found.lines.push({ text: "Of an earlier call: the cache has it." });
    return true;
  }
  found.origins.push(
    { stage: source.name, row: place, column: null },
    { stage: matrix.name, row: null, column },
  );
  const products = places(source.columns).map((d): [number, number] => [
    source.at(place, d),
    matrix.at(d, column),
  ]);
  const bias = matrix.bias ? matrix.at(source.columns, column) : 0;
  const later = matrix.parts && name !== "output";
  const made = later ? products.reduce((total, [a, b]) => total + a * b, bias) : at(row, column);
  found.lines.push(
    {
      text: `The row of ${source.name} times the column of ${matrix.name}, added up${matrix.bias ? ", and the bias" : ""}:`,
    },
    {
      text: `${sum(products)}${matrix.bias ? ` + ${factor(bias)}` : ""} = ${number(made)}`,
      sum: true,
    },
  );
  if (later) found.lines.push({ text: `After ${matrix.parts}: ${number(at(row, column))}.` });
  return true;
}

/** Softmax, step by step: the largest score, every exp, their sum, the share. */
function weights(
  stages: Map<string, Stage>,
  data: Call,
  queryHead: number,
  row: number,
  column: number,
  found: Arithmetic,
) {
  const masked = stages.get("masked_scores")!;
  const stage = stages.get("weights")!;
  found.origins.push({
    stage: masked.sameAs === null ? "masked_scores" : origin(stages, masked),
    row,
    column: null,
  });
  const keys = places(masked.columns);
  const scores = keys.map((j) => masked.at(row, j));
  const sink = data.sinks === null ? null : data.sinks[queryHead]!;
  const every = sink === null ? scores : [...scores, sink];
  const finite = every.filter((score) => Number.isFinite(score));
  if (scores.every((score) => score === -Infinity)) {
    found.lines.push({ text: "No key is visible, so that every weight is 0." });
    return;
  }
  const top = finite.length ? Math.max(...finite) : 0;
  const exps = scores.map((score) => Math.exp(score - top));
  const sinkExp = sink === null ? 0 : Math.exp(sink - top);
  const total = exps.reduce((a, b) => a + b, 0) + sinkExp;
  const weight = stage.at(row, column);
  const hidden = (j: number) => scores[j] === -Infinity;
  found.lines.push({
    text: `The largest score of the row is ${number(top)}; every score becomes exp(score − ${factor(top)}):`,
  });
  const shown = largest(keys, exps, column);
  found.keys = shown.map((j) => ({
    key: j,
    cells: [number(scores[j]!), hidden(j) ? "hidden" : number(exps[j]!), number(stage.at(row, j))],
    share: stage.at(row, j) || 0,
    hidden: hidden(j),
    picked: j === column,
  }));
  if (shown !== keys) {
    const rest = keys.reduce((sum, j) => (shown.includes(j) ? sum : sum + exps[j]!), 0);
    found.more = `… and ${keys.length - shown.length} more keys, whose exps add up to ${number(rest)}`;
  }
  if (sink !== null) {
    found.lines.push({
      text: `The sink of this head counts as well, but nothing is taken from it: exp(${number(sink - top)}) = ${number(sinkExp)}`,
    });
  }
  const sum = `The exps add up to ${number(total)}`;
  if (hidden(column)) {
    found.lines.push({ text: `${sum}; the mask hides this key: weight 0.` });
  } else {
    found.lines.push({ text: `${sum}; the weight is the share:` });
    found.lines.push({
      text: `${number(exps[column]!)} / ${number(total)} = ${number(weight)}`,
      sum: true,
    });
  }
}

function largest(keys: number[], exps: number[], column: number): number[] {
  if (keys.length <= KEYS) return keys;
  const found = [...keys].sort((a, b) => exps[b]! - exps[a]!).slice(0, KEYS);
  if (!found.includes(column)) found[KEYS - 1] = column;
  return found.sort((a, b) => a - b);
}

/** The stage that has the numbers of one that repeats another. */
export function origin(stages: Map<string, Stage>, stage: Stage): string {
  let found = stage;
  while (found.sameAs !== null) found = stages.get(found.sameAs)!;
  return found.name;
}

/** Products and a plus between them: the largest, in their order; the others are added up. */
function sum(products: [number, number][]): string {
  const size = (at: number) => Math.abs(products[at]![0] * products[at]![1]);
  const order = places(products.length).sort((a, b) => size(b) - size(a));
  const kept = new Set(products.length > TERMS ? order.slice(0, TERMS - 1) : order);
  const shown = products.filter((_, at) => kept.has(at));
  const terms = shown.map(([a, b]) => `${factor(a)}·${factor(b)}`);
  const left = products.length - shown.length;
  if (left > 0) {
    const rest = products
      .filter((_, at) => !kept.has(at))
      .reduce((total, [a, b]) => total + a * b, 0);
    terms.push(`${left} more: ${number(rest)}`);
  }
  return terms.join(" + ");
}

/** A formula as a sentence; the name of a stage is written as it is, at its beginning as well. */
function sentence(formula: string, stages: Map<string, Stage>): string {
  const named = stages.has(formula.split(/\W/, 1)[0]!);
  return `${named ? formula[0] : formula.charAt(0).toUpperCase()}${formula.slice(1)}.`;
}
