// Every head as a small map: layers down, heads across, or in the order of a number.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Choice } from "../../shared/choice";
import { type Signal, useSignal } from "../../shared/signals";
import type { Source } from "../../source";
import { current, type Shown } from "./actions";
import type { Answer } from "./ask";
import type { HeadsData, Row } from "./data";
import { type Chosen, headsOf, layerName, runName, same, score } from "./names";
import { RunName, RunNames } from "./run_names";
import { HUES, toggled } from "./several";
import { Small } from "./small";
import type { Order } from "./state";

const ORDER_NAMES: Record<Order, string> = {
  model: "as in the model",
  link: "by what is pinned",
  role: "by role",
  entropy: "by entropy",
  distance: "by distance",
};

interface Listed extends Chosen {
  row: Row;
}

interface Line {
  name: string;
  title: string;
  line: Listed[];
  /** Where its name is that of a layer. */
  layer?: number;
}

/** Heads in a line: as many as there is room for, and in this range. */
const [LEAST_COLUMNS, MOST_COLUMNS] = [12, 24];
const [LEAST_WIDTH, LINE_NAME] = [24, 34];

interface OverviewProps {
  data: HeadsData;
  source: Source;
  shown: Shown;
  order: Signal<Order>;
  choose: (head: Chosen) => void;
  chooseSeveral: (heads: Chosen[]) => void;
  /** What each head answers to what is pinned; null while nothing is. */
  answers: Answer[] | null;
  /** These are how far heads are from their partners. */
  apart: boolean;
}

export function Overview(props: OverviewProps) {
  const { data, source, shown, order, choose, chooseSeveral, answers, apart } = props;
  const chosen = current(shown);
  // In a comparison.
  const other = shown.with && (shown.second ? shown.head : shown.with);
  // A click adds a head to those that are shown.
  const [adding, setAdding] = useState(false);
  const weights = useMemo(
    () =>
      answers && new Map(answers.map((each) => [`${each.layer}/${each.head}`, each.link.weight])),
    [answers],
  );
  const weightOf = ({ layer, head }: Chosen) => weights?.get(`${layer}/${head}`) ?? -1;
  const strongest = answers?.[0]?.link.weight ?? 0;
  const mayMix = data.layers.some(({ weights }) => weights);
  const grid = useRef<HTMLDivElement>(null);
  const every = data.layers.flatMap((layer, place) =>
    layer.rows.map((row, head) => ({ layer: place, head, row })),
  );
  const by = order.value;
  const inModel = by === "model";
  const sorted = inModel
    ? every
    : by === "link"
      ? [...every].sort((a, b) => weightOf(b) - weightOf(a))
      : [...every].sort((a, b) => compare(a.row, b.row, by, data.roles));
  const heads = Math.max(1, ...data.layers.map((layer) => layer.heads));
  const room = useSignal(MOST_COLUMNS);
  useLayoutEffect(() => {
    const box = grid.current!;
    const measure = () => {
      const fit = Math.floor((box.clientWidth - LINE_NAME) / LEAST_WIDTH);
      room.value = Math.max(LEAST_COLUMNS, Math.min(MOST_COLUMNS, fit));
    };
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  // Layers of many heads take several lines, as equal as can be.
  const most = Math.ceil(heads / Math.ceil(heads / room.value));
  const lines: Line[] = inModel
    ? data.layers.flatMap((_, place) =>
        chunks(
          every.filter((each) => each.layer === place),
          most,
        ).map((line, part) => ({
          name: part ? `+${part * most}` : layerName(data, place),
          title: data.layers[place]!.name,
          line,
          ...(part === 0 && { layer: place }),
        })),
      )
    : chunks(sorted, most).map((line) => ({ name: "", title: "", line }));

  // Only the grid is scrolled for the head that is looked at.
  const { layer, head } = chosen;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the order moves the head that is looked at.
  useEffect(() => {
    const box = grid.current!;
    const small = box.querySelector(`[data-head="${layer}/${head}"]`);
    if (!small) return;
    // At first, and whenever small maps have got another size, such as that of a photo.
    const watch = new ResizeObserver(() => {
      if (!small.isConnected) return;
      const [seen, own] = [box.getBoundingClientRect(), small.getBoundingClientRect()];
      if (own.top < seen.top || own.bottom > seen.bottom) {
        box.scrollTop += own.top - seen.top - (seen.height - own.height) / 2;
      }
      if (own.left < seen.left || own.right > seen.right) {
        box.scrollLeft += own.left - seen.left - (seen.width - own.width) / 2;
      }
    });
    watch.observe(small);
    return () => watch.disconnect();
  }, [layer, head, by, most]);

  const go = (down: number, right: number) => {
    const places = lines.flatMap(({ line }, row) =>
      line.map((each, column) => ({ ...each, at: row, column })),
    );
    const now = places.find((each) => same(each, chosen));
    const { line } = lines[Math.max(0, Math.min(lines.length - 1, (now?.at ?? 0) + down))]!;
    const next = line[Math.max(0, Math.min(line.length - 1, (now?.column ?? 0) + right))];
    if (!next) return;
    choose({ layer: next.layer, head: next.head });
    grid.current?.querySelector<HTMLElement>(`[data-head="${next.layer}/${next.head}"]`)?.focus();
  };
  const take = (each: Chosen, more: boolean) => {
    if ((more || adding) && data.layers[each.layer]!.weights) {
      chooseSeveral(toggled(data, shown.heads, chosen, each));
    } else {
      choose(each);
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const [layer, head] =
        (event.target as HTMLElement).dataset.head?.split("/").map(Number) ?? [];
      if (layer !== undefined) take({ layer, head: head! }, true);
      return;
    }
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -Infinity],
      End: [0, Infinity],
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    go(...step);
  };

  return (
    <section class={`ch-overview${every.length > 1 ? "" : " ch-one"}`} aria-label="All heads">
      <div class="ch-controls">
        <label>
          Order
          <Choice
            name="Order"
            value={by}
            all={{ ...ORDER_NAMES, link: apart ? "by difference" : ORDER_NAMES.link }}
            disabled={answers === null && by !== "link" ? "link" : null}
            onChoice={(each) => (order.value = each)}
          />
        </label>
        {mayMix && every.length > 1 && (
          <button
            type="button"
            class="ch-button"
            aria-pressed={adding}
            onClick={() => setAdding(!adding)}
          >
            Several
          </button>
        )}
      </div>
      <div
        class="ch-grid"
        role="grid"
        aria-label="Heads. Arrow keys choose one."
        ref={grid}
        onKeyDown={onKeyDown}
        style={{ "--columns": String(most) }}
      >
        {inModel && (
          <div class="ch-line ch-line-heads" aria-hidden="true">
            <span class="ch-line-name">layer</span>
            {Array.from({ length: most }, (_, head) => (
              <span key={head}>{head}</span>
            ))}
          </div>
        )}
        {lines.map(({ name, title, line, layer }, row) => [
          layer !== undefined && begins(data, layer) && (
            <div class="ch-line-run" role="row" key={`run${row}`}>
              <span role="rowheader">
                {"AB"[data.layers[layer]!.run]}{" "}
                <RunName data={data} run={data.layers[layer]!.run} />
              </span>
            </div>
          ),
          <div class="ch-line" role="row" key={row}>
            <span class="ch-line-name" role="rowheader" title={title}>
              {layer !== undefined && line.length > 1 && data.layers[layer]!.weights ? (
                <button
                  type="button"
                  class="ch-link"
                  tabIndex={-1}
                  aria-label={`${name}: the mean of its heads`}
                  onClick={() => chooseSeveral(headsOf(data, layer))}
                >
                  {name}
                </button>
              ) : (
                name
              )}
            </span>
            {line.map((each) => (
              <Small
                key={`${each.layer}/${each.head}`}
                data={data}
                source={source}
                layer={each.layer}
                head={each.head}
                row={each.row}
                query={shown.pin.query}
                named={!inModel}
                weight={weights ? weightOf(each) : null}
                most={strongest}
                apart={apart}
                chosen={same(each, chosen)}
                other={other !== null && same(each, other)}
                hue={shown.heads.findIndex((one) => same(each, one))}
                coloured={shown.heads.length <= HUES}
                choose={(more) => take({ layer: each.layer, head: each.head }, more)}
              />
            ))}
          </div>,
        ])}
      </div>
      {!inModel && <RunNames data={data} />}
      <p class="ch-remark">
        {every.length} {every.length === 1 ? "head" : "heads"}. The colours of each map go up to its
        own largest weight, and by the square root, so that small ones are seen.
        {mayMix || every.length < 2
          ? ""
          : " Several at once, or a mean, need all weights, which are in the page for texts of up to 1,024 tokens."}
      </p>
    </section>
  );
}

/** Those that find an earlier token come first among the roles, and heads without a role last. */
function compare(a: Row, b: Row, order: Order, { all, matching }: HeadsData["roles"]): number {
  if (order === "role") {
    const place = ({ role }: Row) =>
      role ? all.indexOf(role) + (matching.includes(role) ? 0 : all.length) : 2 * all.length;
    return place(a) - place(b) || score(b) - score(a);
  }
  return (
    ((order === "entropy" ? a.entropy : a.distance) ?? Infinity) -
    ((order === "entropy" ? b.entropy : b.distance) ?? Infinity)
  );
}

function chunks<Each>(all: Each[], size: number): Each[][] {
  const found: Each[][] = [];
  for (let at = 0; at < all.length; at += size) found.push(all.slice(at, at + size));
  return found;
}

/** Whether a run that has a name begins with this layer. */
function begins(data: HeadsData, layer: number): boolean {
  const { run } = data.layers[layer]!;
  return runName(data, run) !== "" && run !== data.layers[layer - 1]?.run;
}
