// One stage as a grid of cells, each of which is drawn again only when what it shows is another.
import { Component } from "preact";
import { cellNumber } from "../views/steps/model";
import type { Touched } from "./core";

/** From so many columns on cells have colours alone, and the reading below has the numbers. */
export const MOST_COLUMNS = 12;

interface CellProps {
  at: string;
  label: string;
  kind: "number" | "still" | "pair";
  text: string;
  /** What stood here before the last edit, where that was something else. */
  old: string;
  value: number;
  /** From -1 to 1. */
  share: number;
  classes: string;
  stop: boolean;
  typing: string | null;
}

class Cell extends Component<CellProps> {
  override shouldComponentUpdate(next: CellProps) {
    const names = Object.keys(next) as (keyof CellProps)[];
    return names.some((name) => !Object.is(next[name], this.props[name]));
  }

  override render({ at, label, kind, text, old, value, share, classes, stop, typing }: CellProps) {
    const content =
      typing === null ? (
        <>
          <span>{text}</span>
          {old && <small>{old}</small>}
        </>
      ) : (
        <input value={typing} inputMode="decimal" aria-label={label} ref={focusEnd} />
      );
    const own = {
      "data-at": at,
      tabIndex: stop && typing === null ? 0 : -1,
      class: `cell ${kind} ${classes}`,
      style: { "--share": `${Math.round(100 * Math.min(1, Math.abs(share)))}%` },
    };
    if (kind === "still" || typing !== null) {
      return (
        <td {...own} aria-label={typing === null ? `${label}: ${text}` : undefined}>
          {content}
        </td>
      );
    }
    const role =
      kind === "pair"
        ? ({ role: "switch", "aria-checked": value === 1 ? "true" : "false" } as const)
        : ({ role: "spinbutton", "aria-valuenow": value, "aria-valuetext": text } as const);
    return (
      <td>
        <span {...own} {...role} aria-label={label}>
          {content}
        </span>
      </td>
    );
  }
}

function focusEnd(input: HTMLInputElement | null) {
  if (input === null) return;
  const root = input.getRootNode() as ShadowRoot;
  if (root.activeElement === input) return;
  input.focus();
  input.setSelectionRange(input.value.length, input.value.length);
}

export interface PanelProps {
  stage: Touched;
  old: Touched | undefined;
  rows: string[];
  columns: string[];
  editable: boolean;
  /** Numbers that a hand has set. */
  cut: ReadonlyMap<string, number>;
  /** Rows of 0 and 1, of a stage over query and key. */
  mask: string[] | null;
  /** The place that waits for a guess. */
  asked: string | null;
  typing: { at: string; text: string } | null;
  stop: string;
  marked: (row: number, column: number) => boolean;
  /** Goes up by one with each edit, so that what changed flashes anew. */
  count: number;
}

export function Panel(props: PanelProps) {
  const { stage, old, rows, columns, editable, cut, mask, asked, typing, stop, marked } = props;
  const small = stage.columns > MOST_COLUMNS;
  const shares = stage.name === "weights";
  const pairs = stage.name === "mask";
  const top = shares ? 1 : stage.largest || 1;
  const cells = (row: number) =>
    columns.map((column, j) => {
      const at = `${stage.name}.${row}.${j}`;
      const value = stage.at(row, j);
      const waits = at === asked;
      const text = waits ? "?" : pairs ? (value ? "●" : "·") : cellNumber(value);
      const before = old?.at(row, j) ?? value;
      const changed = !Object.is(before, value) && !waits;
      const beside = changed && !pairs ? cellNumber(before) : "";
      const hidden = !pairs && mask !== null && mask[row]![j] === "0";
      const kind = pairs && editable ? "pair" : editable && !waits ? "number" : "still";
      const what = pairs ? `${rows[row]} sees ${column}` : `${stage.name} ${rows[row]}, ${column}`;
      const classes = [
        changed && `changed${props.count % 2}`,
        hidden && "hidden",
        cut.has(at) && "cut",
        waits && "asked",
        marked(row, j) && "marked",
        value < 0 && Number.isFinite(value) && "below",
        pairs && value === 1 && "on",
      ];
      return (
        <Cell
          key={j}
          at={at}
          label={hidden ? `${what}, hidden` : what}
          kind={kind}
          text={small && kind !== "pair" && !waits ? "" : text}
          old={small || beside === text ? "" : beside}
          value={value}
          share={waits || !Number.isFinite(value) ? 0 : value / top}
          classes={classes.filter(Boolean).join(" ")}
          stop={at === stop}
          typing={typing?.at === at ? typing.text : null}
        />
      );
    });
  return (
    <section class={`panel ${small ? "small" : ""}`} data-stage={stage.name}>
      <p class="name">
        {stage.name} <span>{stage.formula}</span>
      </p>
      <div class="scroll">
        <table aria-label={stage.name}>
          <thead>
            <tr>
              <td />
              {columns.map((column, j) => (
                <th key={j} scope="col" title={column}>
                  {small ? j : column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, i) => (
              <tr key={i}>
                <th scope="row" title={row}>
                  <bdi>{row}</bdi>
                </th>
                {cells(i)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
