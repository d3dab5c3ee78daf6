// Two heads as one map of what the first gives more than the second, and how far all heads are from their partners.

import { useMemo } from "preact/hooks";
import { Bars } from "../../shared/bars";
import { short } from "../../shared/labels";
import { Legend } from "../../shared/legend";
import { useLoaded } from "../../shared/loaded";
import { HeatMap, type Point } from "../../shared/map";
import { percent, signedPercent } from "../../shared/scale";
import { computed, type Signal } from "../../shared/signals";
import type { Source, Tile } from "../../source";
import type { Answer } from "./ask";
import type { HeadMap, HeadsData } from "./data";
import {
  alignment,
  apart,
  type Change,
  differenceOf,
  differences,
  differenceTile,
  endOfDifferences,
  largestChanges,
  NOWHERE,
} from "./difference";
import { leftOut } from "./filter";
import { type Chosen, everyHead, same, shortName, titleOf } from "./names";
import { LEAST } from "./numbers";
import { pin, type Shared, useActive, useFound, useHeadMaps } from "./panel";
import { RunNames } from "./run_names";
import { partner } from "./start";
import { inside, nameOf } from "./words";

const SHOWN = 10;

interface DifferenceProps {
  data: HeadsData;
  source: Source;
  /** A and B. */
  pair: [Chosen, Chosen];
  shared: Shared;
  drawn: Signal<Tile | null>;
}

export function DifferencePanel({ data, source, pair, shared, drawn }: DifferenceProps) {
  const [a, b] = pair;
  const layer = data.layers[a.layer]!;
  const other = data.layers[b.layer]!;
  const [maps, failed] = useHeadMaps(source, data, pair);
  const kinds = shared.without.value;
  const places = useMemo(() => alignment(data, layer, other), [data, layer, other]);
  const known = useMemo(() => {
    if (!maps || !places) return null;
    const [one, second] = maps as [HeadMap, HeadMap];
    const by = differenceOf(one, second, places, leftOut(data, layer, kinds));
    const end = endOfDifferences(by, [layer.queries, layer.keys]);
    return { one, second, by, end, apart: apart(by, layer.queries, layer.keys) };
  }, [data, maps, places, layer, kinds]);
  const queryName = useMemo(() => nameOf(data, layer, "query"), [data, layer]);
  const keyName = useMemo(() => nameOf(data, layer, "key"), [data, layer]);
  const active = useActive(layer, shared);
  const found = useFound(data, layer, shared);
  const top = useMemo(() => computed(() => drawn.value?.top ?? 0), [drawn]);
  const { query, key } = active;
  // Of a pair those of its query: the sentence has the pair itself.
  const asKey = query === null ? key : null;
  const changes = useMemo(
    () =>
      known
        ? largestChanges(known.by, layer.keys, SHOWN, query, asKey).filter(
            ({ by }) => Math.abs(by) >= LEAST,
          )
        : [],
    [known, layer, query, asKey],
  );
  const of = query !== null ? queryName(query) : asKey !== null ? keyName(asKey) : null;
  const names = pair.map((each) => shortName(data, each)) as [string, string];
  const title = `${titleOf(data, a)} − ${titleOf(data, b).replace("Layer", "layer")}`;
  // A token that the other text does not have.
  const label = (side: Int32Array | undefined, at: number, name: (at: number) => string) =>
    `${side && side[at]! < 0 ? "≠ " : ""}${short(name(at), 8)}`;
  const words = (point: Point) => {
    const { query, key } = inside(point, layer);
    if (!known || query === null || key === null) return "Point at the map.";
    const name = (token: (at: number) => string, at: number) => `${at} ${short(token(at), 16)}`;
    if (point.token) return `token ${name(keyName, key)}`;
    const link = `${name(queryName, query)} → ${name(keyName, key)}: `;
    const by = known.by[query * layer.keys + key]!;
    const [row, column] = [places!.queries[query]!, places!.keys[key]!];
    if (by === NOWHERE) {
      return `${link}${row < 0 || column < 0 ? `only in the text of ${names[0]}` : "hidden, or left out"}`;
    }
    const [here, there] = [known.one.weight(query, key)!, known.second.weight(row, column)!];
    return `${link}${signedPercent(by)} (${percent(Math.max(0, here))} − ${percent(Math.max(0, there))})`;
  };
  return (
    <article class="ch-panel" aria-label={title}>
      <div class="ch-panel-head">
        <h2>{title}</h2>
        {data.runs.length > 1 && <RunNames data={data} />}
      </div>
      {failed && <p role="alert">{failed}</p>}
      <p class="ch-sentence">
        {known && `${percent(known.apart)} of a query’s attention is elsewhere, on average. `}
        {known
          ? `Blue is what ${names[0]} gives more, orange what ${names[1]} gives more.`
          : !places &&
            "These heads cannot be subtracted: not all of their weights are in the page, or they are of other texts without tokens."}
      </p>
      {places && (
        <div class="ch-panel-body">
          <div class="ch-map-side">
            <HeatMap
              rows={layer.queries}
              columns={layer.keys}
              name={`Map of ${title.toLowerCase()}: queries down, keys across`}
              rowLabel={(at) => label(places?.queries, at, queryName)}
              columnLabel={(at) => label(places?.keys, at, keyName)}
              tile={async (rows, columns, cells) => {
                if (!known) return null;
                const tile = differenceTile(known.by, layer, { ...a, rows, columns, cells });
                const single = tile.rows[1] - tile.rows[0] === tile.cells[0];
                return single ? { ...tile, top: known.end } : tile;
              }}
              viewport={shared.view}
              hover={shared.hover}
              pinned={shared.pin}
              marks={found}
              onPin={(point) => pin(point, layer, shared)}
              drawn={drawn}
              top={top}
              version={`${names} ${known === null} ${kinds}`}
              words={words}
            />
            <div class="ch-under">
              <Legend
                top={top.value}
                beyond={false}
                unit={`of a query’s attention: ${names[0]} − ${names[1]}`}
                signed
              />
            </div>
          </div>
          <Changes
            changes={changes}
            of={of === null ? "" : ` of ${short(of, 14)}`}
            token={(change) =>
              `${short(queryName(change.query), 10)} → ${short(keyName(change.key), 10)}`
            }
            onPin={(point) => pin(point, layer, shared)}
          />
        </div>
      )}
    </article>
  );
}

interface ChangesProps {
  changes: Change[];
  of: string;
  token: (change: Change) => string;
  onPin: (point: Point) => void;
}

function Changes({ changes, of, token, onPin }: ChangesProps) {
  const most = Math.abs(changes[0]?.by ?? 1);
  return (
    <section class="ch-numbers">
      <h3>
        <bdi>Largest differences{of}</bdi>
      </h3>
      <Bars
        kind=" ch-changes"
        bars={changes.map((each) => ({
          key: `${each.query}/${each.key}`,
          name: token(each),
          share: Math.abs(each.by) / most,
          less: each.by < 0,
          words: signedPercent(each.by),
          onClick: () => onPin({ query: each.query, key: each.key }),
        }))}
      />
    </section>
  );
}

/** The pairs that are compared: heads of two runs with their partners, or all heads with one. */
function pairsOf(data: HeadsData, first: Chosen): [Chosen, Chosen][] {
  const every = everyHead(data);
  if (data.runs.length > 1) {
    const own = every.filter(({ layer }) => data.layers[layer]!.run === 0);
    return own.map((each) => [each, partner(data, each)]);
  }
  return every.flatMap((each): [Chosen, Chosen][] => (same(each, first) ? [] : [[each, first]]));
}

/** How far each head is from its partner; null while nobody asks. */
export function useDifferences(
  data: HeadsData,
  source: Source,
  first: Chosen,
  asked: boolean,
): Answer[] | null {
  const twice = data.runs.length > 1;
  const load = async (abort: AbortSignal) => {
    const found = await differences(data, source, pairsOf(data, first), abort);
    return found.flatMap(({ head, partner, by }) =>
      (twice ? [head, partner] : [head]).map((each) => ({
        ...each,
        link: { query: -1, key: -1, weight: by },
        error: 0,
      })),
    );
  };
  // Of two runs every head has its own partner.
  const of = [asked, ...(twice ? [] : [first.layer, first.head])];
  const { value, fresh } = useLoaded((abort) => (asked ? load(abort) : null), of);
  return (asked && fresh && value) || null;
}
