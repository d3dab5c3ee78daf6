// How the number at a place comes about: the sum with its numbers, and the keys of a softmax.
import { type Arithmetic, arithmeticOf } from "./arithmetic";
import { type Call, columnLabels, number, placeOf, rowLabels, type Stage } from "./stage";

export const NOTHING: Arithmetic = { lines: [], keys: [], more: "", origins: [] };

export interface Explained {
  heading: string;
  words: string;
  arithmetic: Arithmetic | null;
}

/** What a number is called, and what it is. */
export function headingOf(stage: Stage, row: number, column: number, data: Call): string {
  const [from, to] = [rowLabels(stage, data)[row], columnLabels(stage, data)[column]];
  const [arrow, place] =
    stage.columnAxis === "key" ? ["→", to] : ["·", `${stage.columnName} ${column}`];
  return `${stage.name} ${from} ${arrow} ${place} = ${number(stage.at(row, column))}`;
}

/** How the number at a place comes about. */
export function explained(at: string, stages: Map<string, Stage>, data: Call, head = 0): Explained {
  const [name, row, column] = placeOf(at);
  return {
    heading: headingOf(stages.get(name)!, row, column, data),
    words: "",
    arithmetic: arithmeticOf(stages, data, head, name, row, column),
  };
}

export function Reading({ heading, words, arithmetic, data }: Explained & { data: Call }) {
  return (
    <>
      <p class="name">{heading}</p>
      {words && <p>{words}</p>}
      {arithmetic?.lines.map((line, at) => (
        <p key={at} class={line.sum ? "sum" : ""}>
          {line.text}
        </p>
      ))}
      {arithmetic && arithmetic.keys.length > 0 && (
        <table class="keys">
          <thead>
            <tr>
              {["key", "score", "exp", "weight"].map((each) => (
                <th key={each} scope="col">
                  {each}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {arithmetic.keys.map((line) => (
              <tr key={line.key} class={line.picked ? "picked" : ""}>
                <th scope="row">
                  <bdi>{data.source_tokens[line.key]}</bdi>
                </th>
                {line.cells.map((each, at) => (
                  <td key={at}>{each}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {arithmetic?.more && <p>{arithmetic.more}</p>}
    </>
  );
}
