// One head: its map, its numbers, and the text.

import { batch, computed, type ReadonlySignal, type Signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { label, short } from "../../shared/labels";
import { Legend } from "../../shared/legend";
import { HeatMap, including, moved, type Point, type Viewport, whole } from "../../shared/map";
import { quantity } from "../../shared/scale";
import type { Source, Tile } from "../../source";
import { type HeadMap, type HeadsData, isFew, type LayerData } from "./data";
import { filtered, type Kind, leftOut, shownTile } from "./filter";
import { ROLES } from "./guide";
import { Numbers } from "./numbers";
import { type Chosen, score, titleOf } from "./overview";
import { type Side, Texts } from "./text";
import { headMap } from "./tiles";
import { detail, inside, matches, sentence, tokenOf, words } from "./words";

export const NOTHING: Point = { query: null, key: null };

/** What two heads side by side have in common. */
export interface Shared {
  viewport: Signal<Viewport>;
  hover: Signal<Point>;
  pinned: Signal<Point>;
  search: Signal<string>;
  /** What is left out, and the weight below which links are not drawn. */
  without: ReadonlySignal<readonly Kind[]>;
  least: ReadonlySignal<number>;
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

/** A head as it is, and without what is left out. */
function useShown(source: Source, data: HeadsData, chosen: Chosen, { without, least }: Shared) {
  const layer = data.layers[chosen.layer]!;
  const [raw, failed] = useHeadMap(source, data, chosen);
  const [kinds, weight] = [without.value, least.value];
  const out = useMemo(() => leftOut(data, layer, kinds), [data, layer, kinds]);
  const map = useMemo(() => raw && filtered(raw, out, weight), [raw, out, weight]);
  return { raw, map, out, failed };
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
  const { map } = useShown(source, data, chosen, shared);
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
      least={shared.least.value}
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
  const { raw, map: ready, out, failed } = useShown(source, data, chosen, shared);
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
      <p class="ch-sentence">{sentence(active.value, raw, ready, layer, queryToken, keyToken)}</p>
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
              shownTile(
                data,
                source,
                { ...chosen, rows, columns, cells, abort },
                shared.without.value,
                shared.least.value,
              )
            }
            viewport={viewport}
            hover={hover}
            pinned={pinned}
            marks={found}
            onPin={(point) => pin(point, layer, shared)}
            drawn={drawn}
            top={shared.top}
            version={[
              chosen.layer,
              chosen.head,
              source.changed?.value ?? 0,
              shared.without.value,
              shared.least.value,
            ].join("/")}
            words={(point, tile) =>
              words(inside(point, layer), tile, raw, out, layer, queryToken, keyToken)
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
            out={out}
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

/** The query that a token is, in a text that attends to itself. */
function toQuery(key: number, layer: LayerData): number | null {
  const query = key - (layer.keys - layer.queries);
  return query >= 0 ? query : null;
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
