// One head: its map, its numbers, and the text.

import { batch, computed, type ReadonlySignal, type Signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { label, short } from "../../shared/labels";
import { Legend } from "../../shared/legend";
import { HeatMap, including, moved, type Point, type Viewport, whole } from "../../shared/map";
import { percent, quantity } from "../../shared/scale";
import type { Source, Tile } from "../../source";
import { answerOf, questionOf } from "./ask";
import { type HeadMap, type HeadsData, isFew, type LayerData } from "./data";
import { ROLES } from "./guide";
import { Numbers } from "./numbers";
import { type Chosen, score, titleOf } from "./overview";
import { type Side, Texts } from "./text";
import { headMap } from "./tiles";

export const NOTHING: Point = { query: null, key: null };

/** What two heads side by side have in common. */
export interface Shared {
  viewport: Signal<Viewport>;
  hover: Signal<Point>;
  pinned: Signal<Point>;
  search: Signal<string>;
  /** Where the colours of the maps end, and those of single weights, as in the text: one scale for all
   * heads that are shown. */
  top: ReadonlySignal<number>;
  end: ReadonlySignal<number>;
}

interface PanelProps {
  data: HeadsData;
  source: Source;
  chosen: Chosen;
  shared: Shared;
  /** Filled with what an export needs. */
  drawn: Signal<Tile | null>;
  /** Filled with the weight at which the colours of this head would end. */
  ownEnd: Signal<number>;
  withText: boolean;
}

/** A token of the layer's texts; positions where there are none. */
export function tokenOf(
  data: HeadsData,
  layer: LayerData,
  kind: "query" | "key",
): (at: number) => string {
  const { text, first } = layer[kind];
  const tokens = text === null ? null : data.texts[text]!;
  const offset = kind === "query" && text === null ? layer.keys - layer.queries : 0;
  return (at) => (tokens ? (tokens[at + first] ?? "") : `#${at + offset}`);
}

/** A head's map when it is there, and what went wrong. */
function useHeadMap(
  source: Source,
  data: HeadsData,
  { layer, head }: Chosen,
): [HeadMap | null, string] {
  const [map, setMap] = useState<HeadMap | null>(null);
  const [failed, setFailed] = useState("");
  const about = data.layers[layer]!;
  useEffect(() => {
    let gone = false;
    headMap(source, layer, about, head).then(
      (found) => !gone && setMap(found),
      (error: unknown) =>
        !gone && setFailed(error instanceof Error ? error.message : String(error)),
    );
    return () => {
      gone = true;
    };
  }, [about, layer, head, source]);
  return [map && map.layer === about && map.head === head ? map : null, failed];
}

/** What is pointed at, or else pinned, as far as the layer has it. */
function useActive(layer: LayerData, { hover, pinned }: Shared) {
  return useMemo(
    () =>
      computed<Point>(() => {
        const here =
          hover.value.query !== null || hover.value.key !== null ? hover.value : pinned.value;
        return inside(here, layer);
      }),
    [layer, hover, pinned],
  );
}

function useFound(data: HeadsData, layer: LayerData, { search }: Shared) {
  return useMemo(
    () =>
      computed(() => ({
        queries: search.value
          ? matches(layer.queries, tokenOf(data, layer, "query"), search.value)
          : [],
        keys: search.value ? matches(layer.keys, tokenOf(data, layer, "key"), search.value) : [],
      })),
    [data, layer, search],
  );
}

/** Pins a point, or lets go of it. */
function pin(point: Point, layer: LayerData, { pinned, hover, viewport }: Shared) {
  const again = point.query === pinned.value.query && point.key === pinned.value.key;
  batch(() => {
    pinned.value = again ? NOTHING : point;
    hover.value = NOTHING;
    if (!again) viewport.value = including(viewport.value, point, layer.queries, layer.keys);
  });
}

type TextProps = Pick<PanelProps, "data" | "source" | "chosen" | "shared">;

/** The text that a head reads, or both texts. */
export function HeadText({ data, source, chosen, shared }: TextProps) {
  const layer = data.layers[chosen.layer]!;
  const [map] = useHeadMap(source, data, chosen);
  const active = useActive(layer, shared);
  const found = useFound(data, layer, shared);
  const sides = useMemo(() => sidesOf(data, layer), [data, layer]);
  if (sides.length === 0) return null;
  return (
    <Texts
      sides={sides}
      map={map}
      active={active}
      found={found}
      end={shared.end}
      onHover={(point) => (shared.hover.value = point)}
      onPin={(point, asKey) => {
        const { query } = shared.pinned.value;
        // One of two texts is a query or a key already.
        const both = point.token ? asKey : point.query === null || asKey;
        if (both && query !== null && point.key !== null) point = { query, key: point.key };
        pin(point, layer, shared);
      }}
    />
  );
}

export function Panel({ data, source, chosen, shared, drawn, ownEnd, withText }: PanelProps) {
  const layer = data.layers[chosen.layer]!;
  const { viewport, hover, pinned } = shared;
  const [ready, failed] = useHeadMap(source, data, chosen);
  const queryToken = useMemo(() => tokenOf(data, layer, "query"), [data, layer]);
  const keyToken = useMemo(() => tokenOf(data, layer, "key"), [data, layer]);
  useEffect(() => {
    ownEnd.value = ready?.end ?? 0;
  }, [ready, ownEnd]);
  const tile = drawn.value;
  const top = shared.top.value;
  const beyond = useMemo(() => tile?.values.some((value) => value > 1.001 * top), [tile, top]);
  const self = layer.query.text !== null && layer.query.text === layer.key.text;
  const active = useActive(layer, shared);
  const found = useFound(data, layer, shared);
  const row = layer.rows[chosen.head]!;
  const roles = data.roles.all.filter((role) => (row.scores[role] ?? null) !== null);
  const title = titleOf(data, chosen);
  return (
    <article class="ch-panel" aria-label={title}>
      <div class="ch-panel-head">
        <h2>{title}</h2>
        {row.role && (
          <span class="ch-role" title={roleCard(row.role, layer)}>
            {row.role} {Math.round(score(row) * 100)} %
          </span>
        )}
        <span class="ch-path" title={layer.name}>
          <bdi>{layer.name ? label(layer.name) : "the model"}</bdi>
        </span>
      </div>
      {failed && <p role="alert">{failed}</p>}
      <p class="ch-sentence">{sentence(active.value, ready, layer, queryToken, keyToken)}</p>
      {withText && isFew(layer) && (
        <HeadText data={data} source={source} chosen={chosen} shared={shared} />
      )}
      <div class="ch-panel-body">
        <div class="ch-map-side">
          <HeatMap
            rows={layer.queries}
            columns={layer.keys}
            name={`Map of ${title.toLowerCase()}: queries down, keys across`}
            rowLabel={(at) => short(label(queryToken(at)), 8)}
            columnLabel={(at) => short(label(keyToken(at)), 8)}
            tile={(rows, columns, cells, abort) =>
              source.tile({ layer: chosen.layer, head: chosen.head, rows, columns, cells, abort })
            }
            viewport={viewport}
            hover={hover}
            pinned={pinned}
            marks={found}
            onPin={(point) => pin(point, layer, shared)}
            drawn={drawn}
            top={shared.top}
            version={`${chosen.layer}/${chosen.head}/${source.changed?.value ?? 0}`}
            words={(point, tile) =>
              words(inside(point, layer), tile, ready, layer, queryToken, keyToken)
            }
          />
          <div class="ch-under">
            <Legend top={top} beyond={beyond ?? false} unit="of a query’s attention" />
            <div class="ch-zoom" role="group" aria-label="Zoom">
              <button
                type="button"
                class="ch-button"
                aria-label="Zoom in"
                onClick={() =>
                  (viewport.value = moved(viewport.value, layer.queries, layer.keys, { zoom: 1.6 }))
                }
              >
                +
              </button>
              <button
                type="button"
                class="ch-button"
                aria-label="Zoom out"
                onClick={() =>
                  (viewport.value = moved(viewport.value, layer.queries, layer.keys, {
                    zoom: 1 / 1.6,
                  }))
                }
              >
                −
              </button>
              <button
                type="button"
                class="ch-button"
                onClick={() => (viewport.value = whole(layer.queries, layer.keys))}
              >
                All
              </button>
            </div>
          </div>
          <p class="ch-remark">{detail(tile, layer, ready)}</p>
        </div>
        {ready && (
          <Numbers
            place={chosen.layer}
            map={ready}
            source={source}
            active={active}
            queryToken={queryToken}
            keyToken={keyToken}
            onPin={({ query, key }) =>
              pin({ query: self && key !== null ? toQuery(key, layer) : query, key }, layer, shared)
            }
          />
        )}
      </div>
      {withText && !isFew(layer) && (
        <HeadText data={data} source={source} chosen={chosen} shared={shared} />
      )}
      <dl class="ch-facts ch-head-facts">
        {row.entropy !== null && (
          <div>
            <dt>entropy</dt>
            <dd>{quantity(row.entropy, "nats")}</dd>
          </div>
        )}
        {row.distance !== null && (
          <div>
            <dt>mean distance</dt>
            <dd>{quantity(row.distance, "tokens")}</dd>
          </div>
        )}
        {roles.map((role) => (
          <div key={role} title={roleCard(role, layer)}>
            <dt>{role}</dt>
            <dd>
              {Math.round(row.scores[role]! * 100)} %
              {typeof layer.chance?.[role] === "number" && (
                <span class="ch-chance"> by chance {Math.round(layer.chance[role] * 100)} %</span>
              )}
            </dd>
          </div>
        ))}
      </dl>
    </article>
  );
}

function roleCard(role: string, layer: LayerData): string {
  const chance = layer.chance?.[role];
  const even = typeof chance === "number" ? Math.round(chance * 100) : null;
  return `${role}: ${ROLES[role] ?? role}.${even === null ? "" : `\nA head that looks at all alike has ${even} % in this text.`}`;
}

/** What is pointed at, or pinned, as a sentence. */
function sentence(
  point: Point,
  map: HeadMap | null,
  layer: LayerData,
  queryToken: (at: number) => string,
  keyToken: (at: number) => string,
) {
  const name = (token: string) => (
    <bdi>
      <i>{short(label(token).replace(/^␣(?=.)/, ""), 24)}</i>
    </bdi>
  );
  const question = questionOf(point);
  if (!question || !map) {
    return layer.queries && layer.keys
      ? "Each row is a query: it looks at the keys, the darker the more."
      : "";
  }
  const { query, key } = question;
  if (query !== null && key !== null && map.weight(query, key) === -1) {
    return (
      <>
        The mask hides {name(keyToken(key))} from {name(queryToken(query))}.
      </>
    );
  }
  const link = answerOf(map, question);
  if (!link) return "";
  const most = query === null || key === null;
  return (
    <>
      {name(queryToken(link.query))} gives {percent(link.weight)} of its attention to{" "}
      {name(keyToken(link.key))}
      {most && (query === null ? ", more than any other query" : ", more than to any other key")}.
    </>
  );
}

/** The query that a token is, in a text that attends to itself. */
function toQuery(key: number, layer: LayerData): number | null {
  const query = key - (layer.keys - layer.queries);
  return query >= 0 ? query : null;
}

function inside({ query, key, token = false }: Point, layer: LayerData): Point {
  return {
    token,
    query: query !== null && query < layer.queries ? query : null,
    key: key !== null && key < layer.keys ? key : null,
  };
}

export function matches(count: number, token: (at: number) => string, wanted: string): number[] {
  const needle = wanted.toLocaleLowerCase();
  const found: number[] = [];
  for (let at = 0; at < count; at++) {
    const text = token(at);
    if (
      text.toLocaleLowerCase().includes(needle) ||
      label(text).toLocaleLowerCase().includes(needle)
    )
      found.push(at);
  }
  return found;
}

function sidesOf(data: HeadsData, layer: LayerData): Side[] {
  const self = layer.query.text !== null && layer.query.text === layer.key.text;
  const base = {
    firstQuery: layer.query.first,
    firstKey: layer.key.first,
    queries: layer.queries,
    keys: layer.keys,
  };
  if (self)
    return [
      { ...base, kinds: ["query", "key"], title: "Text", tokens: data.texts[layer.query.text!]! },
    ];
  const sides: Side[] = [];
  if (layer.query.text !== null) {
    sides.push({
      ...base,
      kinds: ["query"],
      title: "Queries",
      tokens: data.texts[layer.query.text]!,
    });
  }
  if (layer.key.text !== null) {
    sides.push({ ...base, kinds: ["key"], title: "Keys", tokens: data.texts[layer.key.text]! });
  }
  return sides;
}

function words(
  { query, key, token }: Point,
  tile: Tile | null,
  map: HeadMap | null,
  layer: LayerData,
  queryToken: (at: number) => string,
  keyToken: (at: number) => string,
): string {
  if (!map || (query === null && key === null)) return "Point at the map, or at a token.";
  const name = (token: (at: number) => string, at: number) =>
    `${at} ${short(label(token(at)), 16)}`;
  if (token) return `token ${name(keyToken, key!)}`;
  if (query === null || key === null) {
    return query === null ? `key ${name(keyToken, key!)}` : `query ${name(queryToken, query)}`;
  }
  const exact = tile?.exact ? single(tile, query, key) : undefined;
  const weight = exact ?? map.weight(query, key);
  if (weight !== null) {
    const doubt = exact === undefined ? error(map.error(weight)) : "";
    const value = weight < 0 ? "hidden by the mask" : `${percent(weight)}${doubt}`;
    return `${name(queryToken, query)} → ${name(keyToken, key)}: ${value}`;
  }
  const pair = `${name(queryToken, query)} → ${name(keyToken, key)}`;
  if (!tile) return pair;
  const tall = (tile.rows[1] - tile.rows[0]) / tile.cells[0];
  const wide = (tile.columns[1] - tile.columns[0]) / tile.cells[1];
  const row = Math.floor((query - tile.rows[0]) / tall);
  const column = Math.floor((key - tile.columns[0]) / wide);
  const within = row >= 0 && row < tile.cells[0] && column >= 0 && column < tile.cells[1];
  if (!within) return pair;
  const value = tile.values[row * tile.cells[1] + column]!;
  const range = (first: number, size: number, at: number, most: number) => {
    const from = Math.max(0, Math.round(first + size * at));
    const to = Math.min(most, Math.max(from + 1, Math.round(first + size * (at + 1)))) - 1;
    return to > from
      ? `${from.toLocaleString("en")}–${to.toLocaleString("en")}`
      : from.toLocaleString("en");
  };
  const about = !tile.exact && (tile.links || tall < tile.grain[0] - 1) ? "about " : "";
  return `${range(tile.rows[0], tall, row, layer.queries)} → ${range(tile.columns[0], wide, column, layer.keys)}: ${value < 0 ? "hidden by the mask" : about + percent(value)}`;
}

function error(by: number): string {
  return !(by >= 5e-7) ? "" : ` ± ${percent(by)}`;
}

/** How fine the map is, and how far it can be trusted. */
function detail(tile: Tile | null, layer: LayerData, map: HeadMap | null): string {
  if (!tile) return map && !map.at && !map.pooled ? "No map of this head was kept." : " ";
  if (tile.values.length === 0) return "There are no tokens.";
  const tall = cellSize(tile.rows, tile.cells[0]);
  const wide = cellSize(tile.columns, tile.cells[1]);
  const cell = `One cell = ${tall} × ${wide} ${tall === "1" && wide === "1" ? "token" : "tokens"}`;
  if (tile.exact) return `${cell}, worked out from query and key.`;
  if (tile.pending !== undefined) {
    return `${cell}. A finer map is being worked out: ${Math.floor(tile.pending * 100)} %.`;
  }
  const silence = tile.silent
    ? ` The ${tile.silent} does not answer: this is what the page has.`
    : "";
  return cell + known(tile, layer, map) + silence;
}

/** What a map that was not worked out for this view knows. */
function known(tile: Tile, layer: LayerData, map: HeadMap | null): string {
  const [queries, keys] = tile.grain;
  if (tile.links) {
    return `. The ${tile.links} strongest links of each query are where they are; the rest is known for ${queries} × ${keys} tokens, and spread evenly there.`;
  }
  if (map && layer.weights) {
    if ("exact" in layer.weights) return ". Weights are as they were, in float32.";
    const worst = map.error(layer.weights.top[map.head]!);
    return `. Weights are rounded, by ${percent(worst)} at most, and small ones by far less.`;
  }
  return queries > 1 || keys > 1 ? `; the finest that is known is ${queries} × ${keys}.` : ".";
}

/** The value of a pair, in a tile of single tokens. */
function single(
  { rows, columns, cells, values }: Tile,
  query: number,
  key: number,
): number | undefined {
  if (rows[1] - rows[0] !== cells[0] || columns[1] - columns[0] !== cells[1]) return undefined;
  if (query < rows[0] || query >= rows[1] || key < columns[0] || key >= columns[1])
    return undefined;
  return values[(query - rows[0]) * cells[1] + key - columns[0]];
}

function cellSize([from, to]: [number, number], cells: number): string {
  const size = (to - from) / Math.max(1, cells);
  return Math.round(size).toLocaleString("en");
}
